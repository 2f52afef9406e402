-- Schema version 1. Every name starts with leasehold_, because the file is the application's.
-- Times are integer UTC milliseconds; statuses and names are small integers inside and words
-- in the view leasehold_jobs.

CREATE TABLE leasehold_schema (
  one               INTEGER PRIMARY KEY CHECK (one = 1),
  version           INTEGER NOT NULL,
  oldest_compatible INTEGER NOT NULL
) STRICT;
INSERT INTO leasehold_schema VALUES (1, 1, 1);

-- Kinds, queues and owners by number: a row that is written again and again stays narrow.
CREATE TABLE leasehold_names (
  id   INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE
) STRICT;

-- One row a job: what claims and settles need, and nothing else.
-- status: 0 pending, 1 running, 2 completed, 3 failed, 4 cancelled.
-- lane, of pending rows: 0 scheduled, 1 ready, 2 suspect, 3 held by the limit of its key.
CREATE TABLE leasehold_job (
  key               INTEGER PRIMARY KEY,
  id                ANY     NOT NULL CHECK (typeof(id) = 'text' OR length(id) = 16),
  kind              INTEGER NOT NULL,
  queue             INTEGER NOT NULL,
  status            INTEGER NOT NULL CHECK (status BETWEEN 0 AND 4),
  lane              INTEGER          CHECK (lane BETWEEN 0 AND 3),
  priority          INTEGER NOT NULL CHECK (priority BETWEEN -1000 AND 1000),
  run_at            INTEGER NOT NULL,
  created_at        INTEGER NOT NULL,
  updated_at        INTEGER NOT NULL,
  started_at        INTEGER,
  claimed_at        INTEGER,
  finished_at       INTEGER,
  attempts          INTEGER NOT NULL CHECK (attempts >= 0),
  max_attempts      INTEGER NOT NULL CHECK (max_attempts >= 1),
  epoch             INTEGER NOT NULL CHECK (epoch >= 0),
  stalls            INTEGER NOT NULL CHECK (stalls >= 0),
  seq               INTEGER NOT NULL,
  token             BLOB             CHECK (length(token) = 16),
  owner             INTEGER,
  lease_until       INTEGER,
  heartbeat_at      INTEGER,
  settled_epoch     INTEGER,
  last_committed_at INTEGER,
  commit_epoch      INTEGER NOT NULL DEFAULT 0,
  commits           INTEGER NOT NULL DEFAULT 0,
  last_holder       INTEGER NOT NULL DEFAULT 0,
  last_number       INTEGER NOT NULL DEFAULT 0,
  ahead             INTEGER NOT NULL DEFAULT 0 CHECK (ahead IN (0, 1)),
  owed_at           INTEGER,
  detailed          INTEGER NOT NULL DEFAULT 0 CHECK (detailed IN (0, 1)),
  tenant            TEXT,
  organization      TEXT,
  idempotency_key   TEXT,
  dedup_key         TEXT,
  lock_key          TEXT,
  limit_key         TEXT,
  -- Capped so that no priority takes a time at the end of 64 bits out of them.
  rank              INTEGER GENERATED ALWAYS AS
                      (min(run_at, 9223372036794775807) + priority * 60000) VIRTUAL,
  CHECK ((status = 0) = (lane IS NOT NULL)),
  CHECK (status = 1 OR (token IS NULL AND lease_until IS NULL AND ahead = 0)),
  CHECK ((token IS NULL) = (lease_until IS NULL) OR status = 1),
  CHECK ((status >= 2) = (finished_at IS NOT NULL)),
  CHECK (status >= 2 OR settled_epoch IS NULL),
  CHECK (status <> 1 OR epoch > 0)
) STRICT;

CREATE UNIQUE INDEX leasehold_job_id ON leasehold_job (id);
CREATE INDEX leasehold_scheduled ON leasehold_job (run_at) WHERE lane = 0;
CREATE INDEX leasehold_ready ON leasehold_job (kind, queue, rank, created_at, id) WHERE lane = 1;
CREATE INDEX leasehold_suspect ON leasehold_job (kind, queue, rank, created_at, id) WHERE lane = 2;
CREATE INDEX leasehold_held ON leasehold_job (limit_key, kind, queue, rank, created_at, id)
  WHERE lane = 3;
CREATE INDEX leasehold_running ON leasehold_job (kind, queue) WHERE status = 1;
CREATE INDEX leasehold_running_limited ON leasehold_job (limit_key)
  WHERE status = 1 AND limit_key IS NOT NULL;
CREATE INDEX leasehold_owed ON leasehold_job (kind, owed_at) WHERE owed_at IS NOT NULL;
CREATE INDEX leasehold_ended ON leasehold_job (status, finished_at) WHERE finished_at IS NOT NULL;
-- A missing tenant or organization is a value of its own, unlike any text.
CREATE UNIQUE INDEX leasehold_idempotency
  ON leasehold_job (idempotency_key, ifnull(tenant, x''), ifnull(organization, x''))
  WHERE idempotency_key IS NOT NULL;
CREATE UNIQUE INDEX leasehold_dedup
  ON leasehold_job (dedup_key, ifnull(tenant, x''), ifnull(organization, x''))
  WHERE dedup_key IS NOT NULL AND finished_at IS NULL;
CREATE UNIQUE INDEX leasehold_lock
  ON leasehold_job (lock_key, ifnull(tenant, x''), ifnull(organization, x''))
  WHERE lock_key IS NOT NULL AND finished_at IS NULL;

-- The columns that most jobs never fill. A row exists where one is filled.
CREATE TABLE leasehold_detail (
  job                 INTEGER PRIMARY KEY,
  verdict             TEXT CHECK (verdict IN ('attempts_exhausted', 'terminal', 'unrecoverable',
                        'rate_limit_exhausted', 'poison', 'orphaned', 'no_handler', 'undecodable')),
  error_class         TEXT CHECK (error_class IN ('transient', 'terminal', 'unrecoverable',
                        'rate_limited')),
  error_code          TEXT,
  last_error          TEXT,
  cancel_requested_at INTEGER,
  cancel_requested_by TEXT,
  parked_at           INTEGER,
  hooked_at           INTEGER,
  hook_failures       INTEGER NOT NULL DEFAULT 0,
  hook_tried_at       INTEGER,
  redrives            INTEGER NOT NULL DEFAULT 0,
  interruptions       INTEGER NOT NULL DEFAULT 0,
  rate_limit_hits     INTEGER NOT NULL DEFAULT 0,
  rate_limited_at     INTEGER,
  progress_done       INTEGER,
  progress_total      INTEGER
) STRICT;

-- Who and what a job is for, written once.
CREATE TABLE leasehold_label (
  job           INTEGER PRIMARY KEY,
  reason        TEXT,
  subject_type  TEXT,
  subject_id    TEXT,
  meta          TEXT,
  trace_context TEXT
) STRICT;

CREATE TABLE leasehold_payload (job INTEGER PRIMARY KEY, payload TEXT NOT NULL) STRICT;
CREATE TABLE leasehold_result (job INTEGER PRIMARY KEY, result TEXT NOT NULL) STRICT;

CREATE TABLE leasehold_checkpoints (
  job   INTEGER NOT NULL,
  key   TEXT    NOT NULL,
  epoch INTEGER NOT NULL,
  value TEXT    NOT NULL,
  PRIMARY KEY (job, key)
) STRICT;

CREATE TABLE leasehold_attempts (
  n          INTEGER PRIMARY KEY,
  job        INTEGER NOT NULL,
  epoch      INTEGER NOT NULL,
  owner      INTEGER,
  claimed_at INTEGER,
  ended_at   INTEGER NOT NULL,
  outcome    TEXT    NOT NULL,
  error      TEXT
) STRICT;
CREATE INDEX leasehold_attempts_job ON leasehold_attempts (job);

CREATE TRIGGER leasehold_job_deleted AFTER DELETE ON leasehold_job BEGIN
  DELETE FROM leasehold_detail WHERE job = old.key;
  DELETE FROM leasehold_label WHERE job = old.key;
  DELETE FROM leasehold_payload WHERE job = old.key;
  DELETE FROM leasehold_result WHERE job = old.key;
  DELETE FROM leasehold_checkpoints WHERE job = old.key;
  DELETE FROM leasehold_attempts WHERE job = old.key;
END;

-- The highest key is remembered where its job goes, so that it is never given to another.
CREATE TRIGGER leasehold_key_used AFTER DELETE ON leasehold_job
WHEN old.key > (SELECT ifnull(max(key), 0) FROM leasehold_job) BEGIN
  INSERT INTO leasehold_state (name, value) VALUES ('last_key', old.key)
    ON CONFLICT (name) DO UPDATE SET value = max(value, old.key);
END;

-- What every process must know of a kind, whichever registered it.
CREATE TABLE leasehold_kinds (
  kind          INTEGER PRIMARY KEY,
  facts         TEXT    NOT NULL CHECK (json_valid(facts)),
  registered_at INTEGER NOT NULL
) STRICT;

-- Which kinds have had jobs in which queues: what a claim looks through.
CREATE TABLE leasehold_lanes (
  kind  INTEGER NOT NULL,
  queue INTEGER NOT NULL,
  PRIMARY KEY (kind, queue)
) STRICT, WITHOUT ROWID;

CREATE TABLE leasehold_pauses (
  scope     TEXT    NOT NULL CHECK (scope IN ('queue', 'kind')),
  name      TEXT    NOT NULL,
  paused_at INTEGER NOT NULL,
  paused_by TEXT    NOT NULL,
  reason    TEXT,
  PRIMARY KEY (scope, name)
) STRICT;

CREATE TABLE leasehold_limits (
  scope   TEXT    NOT NULL CHECK (scope IN ('queue', 'limit_key')),
  name    TEXT    NOT NULL,
  running INTEGER NOT NULL CHECK (running >= 0),
  PRIMARY KEY (scope, name)
) STRICT;

CREATE TABLE leasehold_gates (
  provider     TEXT    PRIMARY KEY,
  closed_until INTEGER NOT NULL
) STRICT;

-- The starts of rate-limited kinds, kept for the length of the window.
CREATE TABLE leasehold_starts (
  kind INTEGER NOT NULL,
  at   INTEGER NOT NULL,
  n    INTEGER NOT NULL,
  PRIMARY KEY (kind, at, n)
) STRICT, WITHOUT ROWID;

CREATE TABLE leasehold_reasons (id TEXT PRIMARY KEY, label TEXT NOT NULL) STRICT;
INSERT INTO leasehold_reasons VALUES
  ('manual', 'Enqueued by hand'), ('schedule', 'Fired by a schedule'),
  ('redrive', 'Run again by an operator');

CREATE TABLE leasehold_actions (
  n      INTEGER PRIMARY KEY,
  at     INTEGER NOT NULL,
  actor  TEXT    NOT NULL,
  action TEXT    NOT NULL,
  target TEXT    NOT NULL,
  reason TEXT,
  count  INTEGER NOT NULL
) STRICT;

-- What retention removed, so that totals outlive the rows.
CREATE TABLE leasehold_totals (
  kind    INTEGER NOT NULL,
  status  INTEGER NOT NULL,
  removed INTEGER NOT NULL,
  PRIMARY KEY (kind, status)
) STRICT, WITHOUT ROWID;

CREATE TABLE leasehold_state (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;

CREATE VIEW leasehold_jobs AS
SELECT
  CASE WHEN typeof(j.id) = 'text' THEN j.id ELSE
    lower(substr(hex(j.id), 1, 8) || '-' || substr(hex(j.id), 9, 4) || '-' ||
      substr(hex(j.id), 13, 4) || '-' || substr(hex(j.id), 17, 4) || '-' || substr(hex(j.id), 21))
  END AS id,
  k.name AS kind, q.name AS queue, j.tenant, j.organization,
  l.reason, l.subject_type, l.subject_id, l.meta, l.trace_context,
  p.payload, r.result, d.progress_done, d.progress_total,
  j.idempotency_key, j.dedup_key, j.lock_key,
  CASE j.status WHEN 0 THEN 'pending' WHEN 1 THEN 'running' WHEN 2 THEN 'completed'
    WHEN 3 THEN 'failed' ELSE 'cancelled' END AS status,
  j.limit_key, j.priority, j.run_at, j.created_at,
  j.epoch, o.name AS owner, j.lease_until, j.heartbeat_at,
  j.attempts, j.max_attempts, j.stalls, j.seq,
  ifnull(d.redrives, 0) AS redrives, ifnull(d.interruptions, 0) AS interruptions,
  ifnull(d.rate_limit_hits, 0) AS rate_limit_hits, d.rate_limited_at,
  ifnull(d.hook_failures, 0) AS hook_failures, j.last_committed_at,
  d.verdict, d.error_class, d.error_code, d.last_error,
  d.cancel_requested_at, d.cancel_requested_by, d.parked_at, j.settled_epoch, d.hooked_at,
  j.updated_at, j.started_at, j.finished_at
FROM leasehold_job j
JOIN leasehold_names k ON k.id = j.kind
JOIN leasehold_names q ON q.id = j.queue
LEFT JOIN leasehold_names o ON o.id = j.owner
LEFT JOIN leasehold_detail d ON d.job = j.key
LEFT JOIN leasehold_label l ON l.job = j.key
LEFT JOIN leasehold_payload p ON p.job = j.key
LEFT JOIN leasehold_result r ON r.job = j.key;
