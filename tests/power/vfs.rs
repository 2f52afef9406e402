//! A layer over `SQLite`'s own file system, and the default one of this process: each call on a
//! file of a [`Disk`] is shown to it first, and it says what becomes of the call. Files of no disk
//! pass by.

#![allow(unsafe_code, reason = "a file system of SQLite is a table of C functions")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use leasehold::rusqlite::ffi::{
    SQLITE_IOERR_NOMEM, SQLITE_LOCK_EXCLUSIVE, SQLITE_OK, sqlite3_file, sqlite3_int64,
    sqlite3_io_methods, sqlite3_vfs, sqlite3_vfs_find, sqlite3_vfs_register,
};

use crate::disk::{Call, Disk, Fate, Handle};

/// An open file of a disk. The file of the layer below lies right behind it, in memory that
/// `SQLite` allocates by the size that we have told it.
#[repr(C)]
struct Shim {
    base: sqlite3_file,
    handle: *mut Handle,
}

/// The layer below, and ours over it.
struct Layers {
    below: *mut sqlite3_vfs,
}

// SAFETY: SQLite never moves, changes or frees a registered file system.
unsafe impl Send for Layers {}
// SAFETY: as above; all of its functions may be called from any thread.
unsafe impl Sync for Layers {}

static LAYERS: OnceLock<Layers> = OnceLock::new();

/// Makes this the file system of every connection that is opened from here on.
pub fn install() {
    LAYERS.get_or_init(|| {
        // SAFETY: the default file system is there once SQLite is initialized, which this does.
        // Ours is a copy that lives for ever, with its own name, `open` and `delete`; the other
        // functions get by with a copy, as they read nothing but what is copied.
        unsafe {
            let below = sqlite3_vfs_find(std::ptr::null());
            let mut ours = *below;
            ours.pNext = std::ptr::null_mut();
            ours.zName = c"leasehold-power".as_ptr();
            ours.szOsFile += c_int::try_from(size_of::<Shim>()).unwrap();
            ours.xOpen = Some(open);
            ours.xDelete = Some(delete);
            assert_eq!(sqlite3_vfs_register(Box::leak(Box::new(ours)), 1), SQLITE_OK);
            Layers { below }
        }
    });
}

fn below() -> *mut sqlite3_vfs {
    LAYERS.get().unwrap().below
}

/// The disk that has a file of this name, and which of its files that is.
unsafe fn find(name: *const c_char) -> Option<Handle> {
    if name.is_null() {
        return None;
    }
    // SAFETY: a name that SQLite gives ends with a zero byte.
    let name = unsafe { CStr::from_ptr(name) };
    Disk::find(name.to_str().ok()?)
}

unsafe extern "C" fn open(
    _: *mut sqlite3_vfs,
    name: *const c_char,
    file: *mut sqlite3_file,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    // SAFETY: `file` points to as many bytes as we have asked for: a `Shim` and a file of the
    // layer below. Where the name is of no disk, the latter has the place to itself.
    unsafe {
        let pass = (*below()).xOpen.unwrap();
        let Some(handle) = find(name) else { return pass(below(), name, file, flags, out) };
        (*file).pMethods = std::ptr::null();
        if let Some(code) = handle.asks(&Call::Open).error() {
            return code;
        }
        let code = pass(below(), name, real(file), flags, out);
        if code == SQLITE_OK {
            let shim = file.cast::<Shim>();
            (*shim).handle = Box::into_raw(Box::new(handle));
            (*shim).base.pMethods = &raw const METHODS;
        }
        code
    }
}

unsafe extern "C" fn delete(_: *mut sqlite3_vfs, name: *const c_char, sync: c_int) -> c_int {
    // SAFETY: the arguments are handed on as they came.
    unsafe {
        let fate = find(name).map(|handle| handle.asks(&Call::Delete { synced: sync != 0 }));
        match fate.and_then(|fate| fate.error()) {
            Some(code) => code,
            None => (*below()).xDelete.unwrap()(below(), name, sync),
        }
    }
}

/// The file of the layer below.
const unsafe fn real(file: *mut sqlite3_file) -> *mut sqlite3_file {
    // SAFETY: it lies in the same allocation; a `Shim` is two pointers, so it is aligned.
    unsafe { file.cast::<Shim>().add(1).cast() }
}

/// The functions of the file of the layer below.
unsafe fn methods(file: *mut sqlite3_file) -> &'static sqlite3_io_methods {
    // SAFETY: it is open, and tables of functions are never freed.
    unsafe { &*(*real(file)).pMethods }
}

unsafe fn asks(file: *mut sqlite3_file, call: &Call<'_>) -> Fate {
    // SAFETY: the handle is there from the open to the close.
    unsafe { (*(*file.cast::<Shim>()).handle).asks(call) }
}

unsafe extern "C" fn close(file: *mut sqlite3_file) -> c_int {
    // SAFETY: nothing is called on a file after its close.
    unsafe {
        drop(Box::from_raw((*file.cast::<Shim>()).handle));
        methods(file).xClose.unwrap()(real(file))
    }
}

unsafe extern "C" fn read(
    file: *mut sqlite3_file,
    to: *mut c_void,
    len: c_int,
    at: sqlite3_int64,
) -> c_int {
    // SAFETY: `to` has room for `len` bytes.
    unsafe {
        match asks(file, &Call::Read) {
            Fate::Fails(code) => code,
            Fate::Torn(_, code) => {
                // Half of what was asked for has come, and rubbish for the rest.
                methods(file).xRead.unwrap()(real(file), to, len, at);
                let half = usize::try_from(len).unwrap() / 2;
                to.cast::<u8>().add(half).write_bytes(0x5a, half);
                code
            }
            Fate::Done => methods(file).xRead.unwrap()(real(file), to, len, at),
        }
    }
}

unsafe extern "C" fn write(
    file: *mut sqlite3_file,
    from: *const c_void,
    len: c_int,
    at: sqlite3_int64,
) -> c_int {
    // SAFETY: `from` has `len` bytes.
    unsafe {
        let Ok(size) = usize::try_from(len) else { return SQLITE_IOERR_NOMEM };
        let bytes = std::slice::from_raw_parts(from.cast::<u8>(), size);
        let pass = methods(file).xWrite.unwrap();
        match asks(file, &Call::Write { at: at.try_into().unwrap(), bytes }) {
            Fate::Fails(code) => code,
            Fate::Torn(written, code) => {
                pass(real(file), from, written.try_into().unwrap(), at);
                code
            }
            Fate::Done => pass(real(file), from, len, at),
        }
    }
}

unsafe extern "C" fn truncate(file: *mut sqlite3_file, size: sqlite3_int64) -> c_int {
    // SAFETY: the arguments are handed on as they came.
    unsafe {
        match asks(file, &Call::Truncate(size.try_into().unwrap())).error() {
            Some(code) => code,
            None => methods(file).xTruncate.unwrap()(real(file), size),
        }
    }
}

unsafe extern "C" fn sync(file: *mut sqlite3_file, flags: c_int) -> c_int {
    // SAFETY: the arguments are handed on as they came.
    unsafe {
        match asks(file, &Call::Sync).error() {
            Some(code) => code,
            None => methods(file).xSync.unwrap()(real(file), flags),
        }
    }
}

unsafe extern "C" fn file_size(file: *mut sqlite3_file, size: *mut sqlite3_int64) -> c_int {
    // SAFETY: the arguments are handed on as they came.
    unsafe {
        match asks(file, &Call::Size).error() {
            Some(code) => code,
            None => methods(file).xFileSize.unwrap()(real(file), size),
        }
    }
}

unsafe extern "C" fn shm_map(
    file: *mut sqlite3_file,
    region: c_int,
    size: c_int,
    extend: c_int,
    out: *mut *mut c_void,
) -> c_int {
    // SAFETY: the arguments are handed on as they came.
    unsafe {
        match asks(file, &Call::Map).error() {
            Some(code) => {
                *out = std::ptr::null_mut();
                code
            }
            None => methods(file).xShmMap.unwrap()(real(file), region, size, extend, out),
        }
    }
}

unsafe extern "C" fn lock(file: *mut sqlite3_file, level: c_int) -> c_int {
    // SAFETY: the arguments are handed on as they came; the handle is there until the close.
    unsafe {
        let code = methods(file).xLock.unwrap()(real(file), level);
        if code == SQLITE_OK && level == SQLITE_LOCK_EXCLUSIVE {
            (*(*file.cast::<Shim>()).handle).is_alone(true);
        }
        code
    }
}

unsafe extern "C" fn unlock(file: *mut sqlite3_file, level: c_int) -> c_int {
    // SAFETY: as above.
    unsafe {
        (*(*file.cast::<Shim>()).handle).is_alone(false);
        methods(file).xUnlock.unwrap()(real(file), level)
    }
}

/// Functions that are the layer's below, on its file.
macro_rules! passed_on {
    ($($name:ident = $method:ident ($($arg:ident: $type:ty),*) -> $out:ty;)*) => {$(
        unsafe extern "C" fn $name(file: *mut sqlite3_file, $($arg: $type),*) -> $out {
            // SAFETY: the arguments are handed on as they came.
            unsafe { methods(file).$method.unwrap()(real(file), $($arg),*) }
        }
    )*};
}

passed_on! {
    check_lock = xCheckReservedLock(out: *mut c_int) -> c_int;
    control = xFileControl(op: c_int, arg: *mut c_void) -> c_int;
    sector_size = xSectorSize() -> c_int;
    characteristics = xDeviceCharacteristics() -> c_int;
    shm_lock = xShmLock(offset: c_int, n: c_int, flags: c_int) -> c_int;
    shm_barrier = xShmBarrier() -> ();
    shm_unmap = xShmUnmap(delete: c_int) -> c_int;
}

/// Version 2 of the interface: with shared memory, which the log needs, and without mapped files,
/// whose writes nobody would see.
static METHODS: sqlite3_io_methods = sqlite3_io_methods {
    iVersion: 2,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(check_lock),
    xFileControl: Some(control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(characteristics),
    xShmMap: Some(shm_map),
    xShmLock: Some(shm_lock),
    xShmBarrier: Some(shm_barrier),
    xShmUnmap: Some(shm_unmap),
    xFetch: None,
    xUnfetch: None,
};
