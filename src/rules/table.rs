//! What can be done when: every state with every action, in one place. The rules, the client
//! and whatever shows buttons ask here.

use crate::error::Refusal;
use crate::job::{Action, State, Status};

use super::operate::Redrive;
use super::row::Row;

/// What an action on a job in some state can come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// It may be done; the status after it is one of these.
    To(&'static [Status]),
    /// It may be done with this option of it; the status after it is one of these.
    With(&'static str, &'static [Status]),
    /// It may be done; the job is gone then.
    Gone,
    /// It is refused with this code, and changes nothing.
    Refused(&'static str),
    /// It does not meet jobs in this state.
    PassesBy,
}

/// The actions of a job's holder.
macro_rules! holders {
    () => {
        Action::Renew
            | Action::Save
            | Action::Complete
            | Action::Fail
            | Action::Defer
            | Action::Yield
            | Action::Interrupt
            | Action::Snooze
            | Action::Release
            | Action::Stop
    };
}

/// What an action on a job in this state can come to.
///
/// ```
/// use leasehold::{Action, Allowed, State, allowed};
///
/// assert_eq!(allowed(State::Pending, Action::Redrive), Allowed::Refused("live"));
/// ```
///
/// The whole table is in SEMANTICS.md, “What can be done when”.
#[must_use]
pub const fn allowed(state: State, action: Action) -> Allowed {
    use Allowed::{PassesBy, Refused, To, With};
    use Status::{Cancelled, Completed, Failed, Pending, Running};
    match state {
        State::Pending => match action {
            Action::Claim => To(&[Running, Failed, Cancelled]),
            Action::Lose => PassesBy,
            Action::Cancel => To(&[Cancelled]),
            Action::Redrive | Action::RunAgain | Action::Delete => Refused("live"),
            holders!() => Refused("not_running"),
        },
        State::Running => match action {
            Action::Claim => PassesBy,
            Action::Renew | Action::Save | Action::Cancel => To(&[Running]),
            Action::Complete => To(&[Completed]),
            Action::Fail | Action::Defer | Action::Yield | Action::Lose => {
                To(&[Pending, Failed, Cancelled])
            }
            Action::Interrupt | Action::Snooze | Action::Release => To(&[Pending, Cancelled]),
            Action::Stop => To(&[Cancelled]),
            Action::Redrive | Action::RunAgain | Action::Delete => Refused("live"),
        },
        State::Completed => ended(action, With("allow_finished", &[Pending]), &[Completed]),
        State::Failed => ended(action, To(&[Pending]), &[Failed]),
        State::Unrecoverable => ended(action, With("force", &[Pending]), &[Failed]),
        State::Cancelled => ended(action, To(&[Pending]), &[Cancelled]),
    }
}

/// The same of a job that has ended. A new job like it leaves it as it is.
const fn ended(action: Action, redrive: Allowed, same: &'static [Status]) -> Allowed {
    match action {
        Action::Claim | Action::Lose => Allowed::PassesBy,
        Action::Cancel => Allowed::Refused("terminal"),
        Action::Redrive => redrive,
        Action::RunAgain => Allowed::To(same),
        Action::Delete => Allowed::Gone,
        holders!() => Allowed::Refused("not_running"),
    }
}

/// Lets an action pass, or says why not. `how` has the options that a redrive was given.
pub(crate) fn check(row: &Row, action: Action, how: Redrive) -> Result<(), Refusal> {
    let state = State::of(row.status, row.detail.verdict);
    let (status, epoch) = (row.status, row.epoch);
    match allowed(state, action) {
        Allowed::To(_) | Allowed::Gone => Ok(()),
        Allowed::With(option, _) if how.allows(option) => Ok(()),
        Allowed::With("force", _) => {
            Err(Refusal::NeedsForce { verdict: row.detail.verdict, epoch })
        }
        Allowed::With(..) => Err(Refusal::NotRedrivable { epoch }),
        Allowed::Refused("live") => {
            Err(Refusal::Live { status, epoch, owner: row.token.and(row.owner.clone()) })
        }
        Allowed::Refused("terminal") => Err(Refusal::Terminal { status, epoch }),
        Allowed::Refused(_) | Allowed::PassesBy => Err(Refusal::NotRunning { status, epoch }),
    }
}
