//! Every statement that the store runs on its hot paths and off them, each with a name.
//!
//! States are literals and nothing is bound to a LIMIT, so that no statement is ever planned
//! anew; the tests below hold each one to that, and to the index that it must use.

/// Declares statements, and the list of them that the tests go through.
macro_rules! statements {
    ($($(#[$doc:meta])* $name:ident = $sql:expr;)+) => {
        $($(#[$doc])* pub(super) const $name: &str = $sql;)+
        #[cfg(test)]
        pub(super) const ALL: &[(&str, &str)] = &[$((stringify!($name), $name),)+];
    };
}

/// The columns of a row as decisions see it, in the order in which they are read.
macro_rules! hot {
    () => {
        "key, id, kind, queue, status, priority, run_at, created_at, updated_at, started_at, \
         finished_at, attempts, max_attempts, epoch, stalls, seq, token, owner, lease_until, \
         heartbeat_at, settled_epoch, last_committed_at, commit_epoch, commits, last_holder, \
         last_number, ahead, limit_key, detailed"
    };
}

/// The other columns of a whole record, and where they are.
macro_rules! whole {
    () => {
        "j.idempotency_key, j.dedup_key, j.lock_key, j.tenant, j.organization, l.reason, \
         l.subject_type, l.subject_id, l.meta, l.trace_context, l.copy_of, p.payload, r.result \
         FROM leasehold_job j LEFT JOIN leasehold_label l ON l.job = j.key \
         LEFT JOIN leasehold_payload p ON p.job = j.key \
         LEFT JOIN leasehold_result r ON r.job = j.key "
    };
}
pub(super) use {hot, whole};

/// The columns of an operation on many jobs, in the order in which they are read.
macro_rules! bulk {
    () => {
        "n, action, filter, scoped, tenant, organization, actor, reason, state, pace, \
         started_at, finished_at, last_key, place_at, place_key, done, refused"
    };
}

/// The columns of a job as a list shows it, after those of `hot!`.
macro_rules! listed {
    () => {
        "j.tenant, j.organization, j.idempotency_key, j.dedup_key, j.lock_key, l.reason, \
         l.subject_type, l.subject_id, l.copy_of, d.redrives, d.progress_done, \
         d.progress_total, d.verdict, d.error_class, d.error_code, d.cancel_requested_at, \
         substr(d.last_error, 1, 200), (SELECT name FROM leasehold_names n WHERE n.id = j.owner), \
         d.parked_at"
    };
}

statements! {
    BEGIN = "BEGIN IMMEDIATE /* leasehold */";
    COMMIT = "COMMIT /* leasehold */";
    ROLLBACK = "ROLLBACK /* leasehold */";
    SAVEPOINT = "SAVEPOINT leasehold_message";
    RELEASE = "RELEASE leasehold_message";
    /// Rows that violate a foreign key, the application's among them.
    VIOLATED = "SELECT count(*) FROM pragma_foreign_key_check /* leasehold */";
    ROLLBACK_TO = "ROLLBACK TO leasehold_message";
    DATA_VERSION = "PRAGMA data_version";
    CHECKPOINT_LOG = "PRAGMA wal_checkpoint(PASSIVE)";
    TRUNCATE_LOG = "PRAGMA wal_checkpoint(TRUNCATE)";
    SCHEMA = "SELECT version, oldest_compatible FROM leasehold_schema WHERE one = 1";

    NAME_OF = "SELECT name FROM leasehold_names WHERE id = ?1";
    NAME_ID = "SELECT id FROM leasehold_names WHERE name = ?1";
    NAME_ADD = "INSERT INTO leasehold_names (name) VALUES (?1)";

    LOAD = concat!("SELECT ", hot!(), " FROM leasehold_job WHERE key = ?1");
    HOLDS = "SELECT 1 FROM leasehold_job WHERE key = ?1 AND status = 1 AND token = ?2";
    FIND = "SELECT key FROM leasehold_job WHERE id = ?1";
    FIND_SCOPED = "SELECT key FROM leasehold_job WHERE id = ?1 AND tenant IS ?2 \
        AND organization IS ?3";
    DETAIL = "SELECT verdict, error_class, error_code, last_error, cancel_requested_at, \
        cancel_requested_by, parked_at, hooked_at, hook_failures, hook_tried_at, redrives, \
        interruptions, rate_limit_hits, rate_limited_at, progress_done, progress_total, restarts \
        FROM leasehold_detail WHERE job = ?1";
    RECORD = concat!("SELECT ", whole!(), "WHERE j.key = ?1");
    PAYLOAD = "SELECT payload FROM leasehold_payload WHERE job = ?1";
    ATTEMPTS = "SELECT a.epoch, o.name, a.claimed_at, a.ended_at, a.outcome, a.error \
        FROM leasehold_attempts a LEFT JOIN leasehold_names o ON o.id = a.owner \
        WHERE a.job = ?1 ORDER BY a.n";

    /// No key is given twice, even where the job that had it is deleted: its holder may write.
    INSERT = "INSERT INTO leasehold_job (key, id, kind, queue, status, lane, priority, run_at, \
        created_at, updated_at, attempts, max_attempts, epoch, stalls, seq, tenant, \
        organization, idempotency_key, dedup_key, lock_key, limit_key) \
        VALUES (1 + max(ifnull((SELECT max(key) FROM leasehold_job), 0), ifnull((SELECT value \
        FROM leasehold_state WHERE name = 'last_key'), 0)), ?1, ?2, ?3, 0, ?4, ?5, ?6, ?7, ?7, 0, ?8, 0, 0, 0, ?9, ?10, ?11, ?12, ?13, ?14)";
    INSERT_PAYLOAD = "INSERT INTO leasehold_payload (job, payload) VALUES (?1, ?2)";
    INSERT_LABEL = "INSERT INTO leasehold_label (job, reason, subject_type, subject_id, meta, \
        trace_context, copy_of) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
    INSERT_LANE = "INSERT OR IGNORE INTO leasehold_lanes (kind, queue) VALUES (?1, ?2)";
    LANES = "SELECT kind, queue FROM leasehold_lanes";

    /// The one write of every transition: names the row by its key and by the epoch, the
    /// status and the token that were read.
    UPDATE = "UPDATE leasehold_job SET status = ?5, lane = ?6, run_at = ?7, updated_at = ?8, \
        started_at = ?9, finished_at = ?10, attempts = ?11, max_attempts = ?12, epoch = ?13, \
        stalls = ?14, seq = ?15, token = ?16, owner = ?17, lease_until = ?18, \
        heartbeat_at = ?19, settled_epoch = ?20, last_committed_at = ?21, commit_epoch = ?22, \
        commits = ?23, last_holder = ?24, last_number = ?25, ahead = ?26, owed_at = ?27, \
        detailed = ?28, claimed_at = CASE WHEN ?29 THEN ?8 ELSE claimed_at END \
        WHERE key = ?1 AND status = ?2 AND epoch = ?3 AND token IS ?4";
    /// A renewal, or another write of a holder that moves nothing: no index is touched.
    RENEW = "UPDATE leasehold_job SET lease_until = ?3, heartbeat_at = ?4, updated_at = ?4 \
        WHERE key = ?1 AND status = 1 AND token = ?2";
    UPSERT_DETAIL = "INSERT INTO leasehold_detail (job, verdict, error_class, error_code, \
        last_error, cancel_requested_at, cancel_requested_by, parked_at, hooked_at, \
        hook_failures, hook_tried_at, redrives, interruptions, rate_limit_hits, \
        rate_limited_at, progress_done, progress_total, restarts) VALUES (?1, ?2, ?3, ?4, ?5, \
        ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18) \
        ON CONFLICT (job) DO UPDATE SET verdict = ?2, error_class = ?3, error_code = ?4, \
        last_error = ?5, cancel_requested_at = ?6, cancel_requested_by = ?7, parked_at = ?8, \
        hooked_at = ?9, hook_failures = ?10, hook_tried_at = ?11, redrives = ?12, \
        interruptions = ?13, rate_limit_hits = ?14, rate_limited_at = ?15, \
        progress_done = ?16, progress_total = ?17, restarts = ?18";
    DELETE_DETAIL = "DELETE FROM leasehold_detail WHERE job = ?1";
    PUT_RESULT = "INSERT INTO leasehold_result (job, result) VALUES (?1, ?2) \
        ON CONFLICT (job) DO UPDATE SET result = ?2";
    DROP_RESULT = "DELETE FROM leasehold_result WHERE job = ?1";
    PUT_CHECKPOINT = "INSERT INTO leasehold_checkpoints (job, key, epoch, value) \
        VALUES (?1, ?2, ?3, ?4) ON CONFLICT (job, key) DO UPDATE SET epoch = ?3, value = ?4";
    CHECKPOINT = "SELECT value FROM leasehold_checkpoints \
        WHERE job = ?1 AND key = ?2 AND epoch <= ?3";
    CHECKPOINTS = "SELECT key, value FROM leasehold_checkpoints \
        WHERE job = ?1 AND epoch <= ?2 ORDER BY key";
    DROP_CHECKPOINTS = "DELETE FROM leasehold_checkpoints WHERE job = ?1";
    INSERT_ATTEMPT = "INSERT INTO leasehold_attempts (job, epoch, owner, claimed_at, ended_at, \
        outcome, error) SELECT ?1, ?2, owner, claimed_at, ?3, ?4, ?5 FROM leasehold_job \
        WHERE key = ?1";
    INSERT_LATE = "INSERT INTO leasehold_attempts (job, epoch, ended_at, outcome, error) \
        VALUES (?1, ?2, ?3, ?4, ?5)";
    TRIM_ATTEMPTS = "DELETE FROM leasehold_attempts WHERE job = ?1 AND n <= (SELECT n \
        FROM leasehold_attempts WHERE job = ?1 ORDER BY n DESC LIMIT 1 OFFSET 100)";
    DELETE_JOB = "DELETE FROM leasehold_job WHERE key = ?1 AND status >= 2";

    BY_IDEMPOTENCY_KEY = "SELECT key FROM leasehold_job WHERE idempotency_key = ?1 \
        AND ifnull(tenant, x'') = ifnull(?2, x'') \
        AND ifnull(organization, x'') = ifnull(?3, x'')";
    BY_DEDUP_KEY = "SELECT key FROM leasehold_job WHERE dedup_key = ?1 AND finished_at IS NULL \
        AND ifnull(tenant, x'') = ifnull(?2, x'') \
        AND ifnull(organization, x'') = ifnull(?3, x'')";
    BY_LOCK_KEY = "SELECT key FROM leasehold_job WHERE lock_key = ?1 AND finished_at IS NULL \
        AND ifnull(tenant, x'') = ifnull(?2, x'') \
        AND ifnull(organization, x'') = ifnull(?3, x'')";

    KEPT_KEY = "SELECT id FROM leasehold_kept_keys WHERE sort = ?1 AND key = ?2 \
        AND ifnull(tenant, x'') = ifnull(?3, x'') \
        AND ifnull(organization, x'') = ifnull(?4, x'') AND until > ?5";
    KEEP_KEY = "INSERT INTO leasehold_kept_keys (sort, key, tenant, organization, id, until) \
        VALUES (?1, ?2, ?3, ?4, ?5, ?6) \
        ON CONFLICT (sort, key, ifnull(tenant, x''), ifnull(organization, x'')) \
        DO UPDATE SET id = ?5, until = ?6";
    DROP_KEPT_KEYS = "DELETE FROM leasehold_kept_keys WHERE n IN (SELECT n \
        FROM leasehold_kept_keys WHERE until <= ?1 ORDER BY until LIMIT 100)";
    /// Changes nothing, and takes the lock to write.
    TAKE_LOCK = "UPDATE leasehold_state SET value = value WHERE name = 'last_key'";

    /// Rows whose time has come, earliest first.
    DUE = "SELECT key, stalls FROM leasehold_job WHERE lane = 0 AND run_at <= ?1 ORDER BY run_at";
    NEXT_DUE = "SELECT run_at FROM leasehold_job WHERE lane = 0 ORDER BY run_at LIMIT 1";
    SET_LANE = "UPDATE leasehold_job SET lane = ?2 WHERE key = ?1 AND status = 0";
    /// The first row of each pair of kind and queue, in one statement.
    READY_HEADS = "SELECT j.key, j.kind, j.queue, j.rank, j.created_at, j.id \
        FROM json_each(?1) e CROSS JOIN leasehold_job j ON j.key = (SELECT i.key \
        FROM leasehold_job i WHERE i.lane = 1 AND i.kind = e.value ->> 0 \
        AND i.queue = e.value ->> 1 ORDER BY i.rank, i.created_at, i.id LIMIT 1)";
    SUSPECT_HEADS = "SELECT j.key, j.kind, j.queue, j.rank, j.created_at, j.id \
        FROM json_each(?1) e CROSS JOIN leasehold_job j ON j.key = (SELECT i.key \
        FROM leasehold_job i WHERE i.lane = 2 AND i.kind = e.value ->> 0 \
        AND i.queue = e.value ->> 1 ORDER BY i.rank, i.created_at, i.id LIMIT 1)";
    /// The rows of one pair in claim order; stepped as often as rows are wanted.
    READY = concat!("SELECT ", hot!(), ", rank FROM leasehold_job \
        WHERE lane = 1 AND kind = ?1 AND queue = ?2 ORDER BY rank, created_at, id");
    SUSPECTS = concat!("SELECT ", hot!(), ", rank FROM leasehold_job \
        WHERE lane = 2 AND kind = ?1 AND queue = ?2 ORDER BY rank, created_at, id");
    NEXT_HELD_KEY = "SELECT limit_key FROM leasehold_job WHERE lane = 3 AND limit_key > ?1 \
        ORDER BY limit_key LIMIT 1";
    NEXT_HELD_PAIR = "SELECT kind, queue FROM leasehold_job WHERE lane = 3 AND limit_key = ?1 \
        AND (kind, queue) > (?2, ?3) ORDER BY kind, queue LIMIT 1";
    HELD = "SELECT key, stalls FROM leasehold_job WHERE lane = 3 AND limit_key = ?1 \
        AND kind = ?2 AND queue = ?3 ORDER BY rank, created_at, id";

    RUNNING_OF_KIND = "SELECT count(*) FROM leasehold_job WHERE status = 1 AND kind = ?1";
    RUNNING_OF_QUEUE = "SELECT count(*) FROM leasehold_job INDEXED BY leasehold_running \
        WHERE status = 1 AND queue = ?1";
    RUNNING_OF_KEY = "SELECT count(*) FROM leasehold_job WHERE status = 1 AND limit_key = ?1";
    /// Starts further ahead than a window are of a clock that has been set back.
    STARTS = "SELECT count(*) FROM leasehold_starts WHERE kind = ?1 AND at > ?2 AND at <= ?3";
    /// The start before which so many others came.
    START_BEFORE = "SELECT at FROM leasehold_starts WHERE kind = ?1 AND at <= ?2 \
        ORDER BY at DESC, n DESC LIMIT 1 OFFSET ?3";
    ADD_START = "INSERT INTO leasehold_starts (kind, at, n) VALUES (?1, ?2, (SELECT \
        ifnull(max(n), 0) + 1 FROM leasehold_starts WHERE kind = ?1 AND at = ?2))";
    DROP_STARTS = "DELETE FROM leasehold_starts WHERE kind = ?1 AND at <= ?2";

    /// All running rows; the reaper looks at the end of each lease.
    RUNNING = "SELECT key, owner, epoch, heartbeat_at, lease_until FROM leasehold_job \
        INDEXED BY leasehold_running WHERE status = 1";
    OWED = "SELECT key FROM leasehold_job WHERE kind = ?1 AND owed_at IS NOT NULL \
        ORDER BY owed_at";
    OWED_SINCE = "SELECT kind, count(*) FROM leasehold_job INDEXED BY leasehold_owed \
        WHERE owed_at IS NOT NULL AND owed_at < ?1 GROUP BY kind";
    NEXT_ENDED_KIND = "SELECT kind FROM leasehold_job WHERE finished_at IS NOT NULL \
        AND kind > ?1 ORDER BY kind LIMIT 1";
    ENDED = "SELECT key, finished_at FROM leasehold_job WHERE kind = ?1 AND status = ?2 \
        AND finished_at IS NOT NULL AND finished_at < ?3 ORDER BY finished_at, key";
    /// The kind is missing where the job is not completed any more.
    DISCARDS = "SELECT d.job, j.kind FROM leasehold_discards d LEFT JOIN leasehold_job j \
        ON j.key = d.job AND j.status = 2";
    ADD_DISCARD = "INSERT OR IGNORE INTO leasehold_discards (job) VALUES (?1)";
    DROP_DISCARD = "DELETE FROM leasehold_discards WHERE job = ?1";

    KINDS = "SELECT kind, facts FROM leasehold_kinds";
    PUT_KIND = "INSERT INTO leasehold_kinds (kind, facts, registered_at) VALUES (?1, ?2, ?3) \
        ON CONFLICT (kind) DO UPDATE SET facts = ?2, registered_at = ?3";
    PAUSES = "SELECT scope, name, paused_at, paused_by, reason FROM leasehold_pauses \
        ORDER BY scope, name";
    PUT_PAUSE = "INSERT OR IGNORE INTO leasehold_pauses (scope, name, paused_at, paused_by, \
        reason) VALUES (?1, ?2, ?3, ?4, ?5)";
    DROP_PAUSE = "DELETE FROM leasehold_pauses WHERE scope = ?1 AND name = ?2";
    LIMITS = "SELECT scope, name, running FROM leasehold_limits";
    PUT_LIMIT = "INSERT INTO leasehold_limits (scope, name, running) VALUES (?1, ?2, ?3) \
        ON CONFLICT (scope, name) DO UPDATE SET running = ?3";
    GATES = "SELECT provider, closed_until FROM leasehold_gates";
    CLOSE_GATE = "INSERT INTO leasehold_gates (provider, closed_until) VALUES (?1, ?2) \
        ON CONFLICT (provider) DO UPDATE SET closed_until = max(closed_until, ?2)";
    OPEN_GATE = "DELETE FROM leasehold_gates WHERE provider = ?1";
    REASON = "SELECT 1 FROM leasehold_reasons WHERE id = ?1";
    REASONS = "SELECT id, label FROM leasehold_reasons ORDER BY id";
    PUT_REASON = "INSERT INTO leasehold_reasons (id, label) VALUES (?1, ?2) \
        ON CONFLICT (id) DO UPDATE SET label = ?2";
    ADD_ACTION = "INSERT INTO leasehold_actions (at, actor, action, target, reason, count, \
        filter) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
    ACTIONS = "SELECT n, at, actor, action, target, reason, filter, count \
        FROM leasehold_actions WHERE n < ?1 ORDER BY n DESC";
    DROP_OLD_ACTIONS = "DELETE FROM leasehold_actions WHERE n IN (SELECT n FROM (SELECT n, at \
        FROM leasehold_actions ORDER BY n LIMIT 100) WHERE at < ?1)";

    ADD_BULK = "INSERT INTO leasehold_bulks (action, filter, scoped, tenant, organization, \
        actor, reason, state, pace, started_at, due_at, minted, last_key) VALUES (?1, ?2, ?3, \
        ?4, ?5, ?6, ?7, 'running', ?8, ?9, ?9, ?10, ifnull((SELECT max(key) FROM leasehold_job), 0))";
    BULK_MINTED = "SELECT n FROM leasehold_bulks WHERE minted = ?1";
    BULKS = concat!("SELECT ", bulk!(), " FROM leasehold_bulks WHERE n <= ?1 ORDER BY n DESC");
    DUE_BULKS = concat!("SELECT ", bulk!(), ", due_at FROM leasehold_bulks \
        WHERE state = 'running' ORDER BY due_at");
    NEXT_BULK = "SELECT due_at FROM leasehold_bulks WHERE state = 'running' \
        ORDER BY due_at LIMIT 1";
    LATER_BULK = "SELECT due_at FROM leasehold_bulks WHERE state = 'running' AND due_at > ?1 \
        ORDER BY due_at LIMIT 1";
    SWITCH_BULK = "UPDATE leasehold_bulks SET state = ?2, due_at = ?3 WHERE n = ?1";
    ADVANCE_BULK = "UPDATE leasehold_bulks SET place_at = ?2, place_key = ?3, done = ?4, \
        refused = ?5, due_at = ?6, state = CASE WHEN ?7 THEN 'done' ELSE state END, \
        finished_at = CASE WHEN ?7 THEN ?8 END WHERE n = ?1";
    ADD_BULK_ROW = "INSERT INTO leasehold_bulk_rows (bulk, id, at, outcome, detail) \
        VALUES (?1, ?2, ?3, ?4, ?5)";
    BULK_ROW_OF = "SELECT 1 FROM leasehold_bulk_rows WHERE bulk = ?1 AND id = ?2";
    BULK_ROWS = "SELECT n, id, at, outcome, detail FROM leasehold_bulk_rows \
        WHERE bulk = ?1 AND n > ?2 ORDER BY n";
    DROP_OLD_BULK_ROWS = "DELETE FROM leasehold_bulk_rows WHERE n IN (SELECT r.n \
        FROM leasehold_bulks b JOIN leasehold_bulk_rows r ON r.bulk = b.n \
        WHERE b.state = 'done' AND b.finished_at < ?1 LIMIT 100)";
    DROP_OLD_BULKS = "DELETE FROM leasehold_bulks WHERE state = 'done' AND finished_at < ?1 \
        AND NOT EXISTS (SELECT 1 FROM leasehold_bulk_rows r WHERE r.bulk = leasehold_bulks.n)";
    ADD_TOTAL = "INSERT INTO leasehold_totals (kind, status, removed) VALUES (?1, ?2, 1) \
        ON CONFLICT (kind, status) DO UPDATE SET removed = removed + 1";
    STATE = "SELECT value FROM leasehold_state WHERE name = ?1";
    PUT_STATE = "INSERT INTO leasehold_state (name, value) VALUES (?1, ?2) \
        ON CONFLICT (name) DO UPDATE SET value = ?2";

    SUMMARY = concat!("SELECT ", hot!(), ", ", listed!(), " FROM leasehold_job j \
        LEFT JOIN leasehold_label l ON l.job = j.key LEFT JOIN leasehold_detail d \
        ON d.job = j.key WHERE key = ?1");
    /// Lists: the keys alone, in their order.
    NEWEST = "SELECT key FROM leasehold_job WHERE key < ?1 ORDER BY key DESC";
    OLDEST = "SELECT key FROM leasehold_job WHERE key > ?1 ORDER BY key";
    TENANT_NEWEST = "SELECT key FROM leasehold_job \
        WHERE (tenant IS NOT NULL OR organization IS NOT NULL) AND tenant IS ?2 \
        AND organization IS ?3 AND key < ?1 ORDER BY key DESC";
    TENANT_OLDEST = "SELECT key FROM leasehold_job \
        WHERE (tenant IS NOT NULL OR organization IS NOT NULL) AND tenant IS ?2 \
        AND organization IS ?3 AND key > ?1 ORDER BY key";
    SUBJECT_NEWEST = "SELECT job FROM leasehold_label WHERE subject_id = ?2 AND job < ?1 \
        ORDER BY job DESC";
    SUBJECT_OLDEST = "SELECT job FROM leasehold_label WHERE subject_id = ?2 AND job > ?1 \
        ORDER BY job";
    ENDED_NEWEST = "SELECT key, finished_at FROM leasehold_job WHERE kind = ?1 AND status = ?2 \
        AND finished_at IS NOT NULL AND finished_at <= ?3 AND (finished_at < ?3 OR key < ?4) \
        ORDER BY finished_at DESC, key DESC";
    ENDED_AFTER = "SELECT key, finished_at FROM leasehold_job WHERE kind = ?1 AND status = ?2 \
        AND finished_at IS NOT NULL AND finished_at >= ?3 AND (finished_at > ?3 OR key > ?4) \
        ORDER BY finished_at, key";

    /// Pending jobs by kind: scheduled, retrying, ready.
    COUNT_PENDING = "SELECT n.name, count(*) FILTER (WHERE NOT due AND attempts = 0), \
        count(*) FILTER (WHERE NOT due AND attempts > 0), count(*) FILTER (WHERE due) FROM \
        (SELECT kind, attempts, run_at <= ?1 AS due FROM leasehold_job \
        INDEXED BY leasehold_scheduled WHERE lane = 0 UNION ALL \
        SELECT kind, attempts, run_at <= ?1 FROM leasehold_job INDEXED BY leasehold_ready \
        WHERE lane = 1 UNION ALL \
        SELECT kind, attempts, run_at <= ?1 FROM leasehold_job INDEXED BY leasehold_suspect \
        WHERE lane = 2 UNION ALL \
        SELECT kind, attempts, run_at <= ?1 FROM leasehold_job INDEXED BY leasehold_held \
        WHERE lane = 3) p JOIN leasehold_names n ON n.id = p.kind GROUP BY p.kind";
    COUNT_RUNNING = "SELECT count(*) FILTER (WHERE lease_until >= ?1), count(*) FROM \
        leasehold_job INDEXED BY leasehold_running WHERE status = 1";
    COUNT_ENDED = "SELECT kind, status, count(*) FROM leasehold_job \
        INDEXED BY leasehold_ended_of_kind WHERE finished_at IS NOT NULL GROUP BY kind, status";
    COUNT_PARKED = "SELECT count(*) FROM leasehold_detail WHERE parked_at IS NOT NULL";
    /// The same of one scope: kinds, the number of their phase, how many.
    COUNT_SCOPED = "SELECT n.name, CASE j.status WHEN 0 THEN CASE WHEN run_at <= ?1 THEN 2 \
        WHEN attempts > 0 THEN 1 ELSE 0 END WHEN 1 THEN CASE WHEN lease_until >= ?1 THEN 3 \
        ELSE 4 END WHEN 2 THEN 5 WHEN 4 THEN 6 ELSE 7 + (d.parked_at IS NOT NULL) END AS phase, \
        count(*) FROM leasehold_job j JOIN leasehold_names n ON n.id = j.kind \
        LEFT JOIN leasehold_detail d ON d.job = j.key \
        WHERE j.tenant IS ?2 AND j.organization IS ?3 GROUP BY 1, 2";
    TOTALS = "SELECT kind, status, removed FROM leasehold_totals";
    /// Whether a claim would find something: looked at from a read-only connection.
    ANY_READY = "SELECT 1 FROM leasehold_lanes l CROSS JOIN leasehold_job j \
        ON j.lane = 1 AND j.kind = l.kind AND j.queue = l.queue \
        WHERE l.kind IN (SELECT value FROM json_each(?1)) LIMIT 1";
    ANY_SUSPECT = "SELECT 1 FROM leasehold_lanes l CROSS JOIN leasehold_job j \
        ON j.lane = 2 AND j.kind = l.kind AND j.queue = l.queue \
        WHERE l.kind IN (SELECT value FROM json_each(?1)) LIMIT 1";
}
