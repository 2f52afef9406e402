-- Schema version 2: lists for operators, operations on many jobs, keys that outlive their rows,
-- and enqueuing by plain SQL.

UPDATE leasehold_schema SET version = 2, oldest_compatible = 2;

-- Ended rows by kind: each kind is kept as long as it says, and looked at without the others.
DROP INDEX leasehold_ended;
CREATE INDEX leasehold_ended_of_kind ON leasehold_job (kind, status, finished_at)
  WHERE finished_at IS NOT NULL;
CREATE INDEX leasehold_of_tenant ON leasehold_job (tenant, organization)
  WHERE tenant IS NOT NULL OR organization IS NOT NULL;
CREATE INDEX leasehold_of_subject ON leasehold_label (subject_id) WHERE subject_id IS NOT NULL;

CREATE INDEX leasehold_parked ON leasehold_detail (parked_at) WHERE parked_at IS NOT NULL;

-- The job that this one was made after, by an operator.
ALTER TABLE leasehold_label ADD COLUMN copy_of TEXT;

-- How often a job was restarted from nothing: part of the idempotency keys of its steps.
ALTER TABLE leasehold_detail ADD COLUMN restarts INTEGER NOT NULL DEFAULT 0;

-- Completed jobs that go with the next pass of the reaper.
CREATE TABLE leasehold_discards (job INTEGER PRIMARY KEY) STRICT;
CREATE TRIGGER leasehold_discarded AFTER DELETE ON leasehold_job BEGIN
  DELETE FROM leasehold_discards WHERE job = old.key;
END;

-- Keys that are taken for a time, whatever becomes of the row that brought them.
CREATE TABLE leasehold_kept_keys (
  n            INTEGER PRIMARY KEY,
  sort         TEXT    NOT NULL CHECK (sort IN ('idempotency_key', 'dedup_key')),
  key          TEXT    NOT NULL,
  tenant       TEXT,
  organization TEXT,
  id           ANY     NOT NULL CHECK (typeof(id) = 'text' OR length(id) = 16),
  until        INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX leasehold_kept_key
  ON leasehold_kept_keys (sort, key, ifnull(tenant, x''), ifnull(organization, x''));
CREATE INDEX leasehold_kept_until ON leasehold_kept_keys (until);

-- What an operator's action was about, where it was about many.
ALTER TABLE leasehold_actions ADD COLUMN filter TEXT;

-- Operations on many jobs: a frozen filter and an action, worked off a slice at a time.
CREATE TABLE leasehold_bulks (
  n            INTEGER PRIMARY KEY,
  -- Minted by whoever starts it, so that asking again after a lost answer starts no second one.
  minted       BLOB    NOT NULL UNIQUE CHECK (length(minted) = 16),
  action       TEXT    NOT NULL CHECK (json_valid(action)),
  filter       TEXT    NOT NULL CHECK (json_valid(filter)),
  scoped       INTEGER NOT NULL CHECK (scoped IN (0, 1)),
  tenant       TEXT,
  organization TEXT,
  actor        TEXT    NOT NULL,
  reason       TEXT,
  state        TEXT    NOT NULL CHECK (state IN ('running', 'stopped', 'done')),
  pace         INTEGER NOT NULL CHECK (pace >= 1),
  started_at   INTEGER NOT NULL,
  finished_at  INTEGER,
  -- When the next slice is due.
  due_at       INTEGER NOT NULL,
  -- The highest key at the start: what was enqueued later is not touched.
  last_key     INTEGER NOT NULL,
  -- How far it has come: a time, and a key.
  place_at     INTEGER,
  place_key    INTEGER,
  done         INTEGER NOT NULL DEFAULT 0,
  refused      INTEGER NOT NULL DEFAULT 0,
  CHECK ((state = 'done') = (finished_at IS NOT NULL))
) STRICT;
CREATE INDEX leasehold_bulks_running ON leasehold_bulks (due_at) WHERE state = 'running';
CREATE INDEX leasehold_bulks_done ON leasehold_bulks (finished_at) WHERE state = 'done';
-- What became of each job.
CREATE TABLE leasehold_bulk_rows (
  n       INTEGER PRIMARY KEY,
  bulk    INTEGER NOT NULL,
  id      TEXT    NOT NULL,
  at      INTEGER NOT NULL,
  outcome TEXT    NOT NULL,
  detail  TEXT
) STRICT;
CREATE INDEX leasehold_bulk_rows_of ON leasehold_bulk_rows (bulk, n);
CREATE UNIQUE INDEX leasehold_bulk_rows_once ON leasehold_bulk_rows (bulk, id);

-- All bytes in their order, to make an id of.
CREATE TABLE leasehold_bytes (one INTEGER PRIMARY KEY CHECK (one = 1), bytes BLOB NOT NULL) STRICT;
INSERT INTO leasehold_bytes VALUES (1, CAST(
  x'000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f' ||
  x'202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f' ||
  x'404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f' ||
  x'606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f' ||
  x'808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f' ||
  x'a0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebf' ||
  x'c0c1c2c3c4c5c6c7c8c9cacbcccdcecfd0d1d2d3d4d5d6d7d8d9dadbdcdddedf' ||
  x'e0e1e2e3e4e5e6e7e8e9eaebecedeeeff0f1f2f3f4f5f6f7f8f9fafbfcfdfeff' AS BLOB));

-- The job that is being enqueued, while it is.
CREATE TABLE leasehold_new (
  one   INTEGER PRIMARY KEY CHECK (one = 1),
  now   INTEGER NOT NULL,
  id    ANY     NOT NULL,
  kind  INTEGER,
  key   INTEGER,
  queue TEXT
) STRICT;

-- Enqueuing by plain SQL, from any library or language, inside the application's own
-- transaction. A column that is left out has its usual value; times and periods are
-- milliseconds. A key that names an existing job leaves that job as it is and adds none.
CREATE VIEW leasehold_enqueue AS SELECT
  NULL AS kind, NULL AS payload, NULL AS id, NULL AS run_at, NULL AS delay, NULL AS priority,
  NULL AS max_attempts, NULL AS idempotency_key, NULL AS keep_key_for, NULL AS dedup_key,
  NULL AS unique_for, NULL AS lock_key, NULL AS limit_key, NULL AS tenant,
  NULL AS organization, NULL AS reason, NULL AS subject_type, NULL AS subject_id,
  NULL AS meta, NULL AS trace_context, NULL AS created_at
WHERE 0;

CREATE TRIGGER leasehold_enqueued INSTEAD OF INSERT ON leasehold_enqueue BEGIN
  SELECT RAISE(ABORT, 'leasehold: the database must be in UTF-8')
    WHERE length(CAST('a' AS BLOB)) <> 1;
  SELECT RAISE(ABORT, 'leasehold: kind must be 1 to 100 of a-z 0-9 _ . -, the first a letter or digit')
    WHERE NOT ifnull(typeof(NEW.kind) = 'text' AND length(NEW.kind) BETWEEN 1 AND 100
      AND instr(NEW.kind, char(0)) = 0
      AND NEW.kind GLOB '[a-z0-9]*' AND NEW.kind NOT GLOB '*[^a-z0-9_.-]*', 0);
  SELECT RAISE(ABORT, 'leasehold: payload must be JSON text')
    WHERE NOT ifnull(NEW.payload IS NULL OR (typeof(NEW.payload) = 'text' AND json_valid(NEW.payload)
      AND instr(NEW.payload, char(0)) = 0), 0);
  SELECT RAISE(ABORT, 'leasehold: payload is larger than max_payload allows')
    WHERE NOT ifnull(NEW.payload IS NULL OR length(CAST(NEW.payload AS BLOB)) <=
      ifnull((SELECT value FROM leasehold_state WHERE name = 'max_payload'), 1048576), 0);
  SELECT RAISE(ABORT, 'leasehold: payload must not be nested deeper than 128')
    WHERE NOT ifnull(NEW.payload IS NULL OR 2 * length(NEW.payload) - length(replace(NEW.payload, '[', ''))
      - length(replace(NEW.payload, '{', '')) <= 128 OR (SELECT max(depth) FROM (WITH RECURSIVE inside (value, depth) AS (
      SELECT NEW.payload, 1 UNION ALL SELECT e.value, depth + 1 FROM inside, json_each(inside.value) e
      WHERE e.type IN ('array', 'object') AND depth <= 128) SELECT depth FROM inside)) <= 128, 0);
  SELECT RAISE(ABORT, 'leasehold: meta must be JSON text')
    WHERE NOT ifnull(NEW.meta IS NULL OR (typeof(NEW.meta) = 'text' AND json_valid(NEW.meta)
      AND instr(NEW.meta, char(0)) = 0), 0);
  SELECT RAISE(ABORT, 'leasehold: meta is larger than max_meta allows')
    WHERE NOT ifnull(NEW.meta IS NULL OR length(CAST(NEW.meta AS BLOB)) <=
      ifnull((SELECT value FROM leasehold_state WHERE name = 'max_meta'), 65536), 0);
  SELECT RAISE(ABORT, 'leasehold: meta must not be nested deeper than 128')
    WHERE NOT ifnull(NEW.meta IS NULL OR 2 * length(NEW.meta) - length(replace(NEW.meta, '[', ''))
      - length(replace(NEW.meta, '{', '')) <= 128 OR (SELECT max(depth) FROM (WITH RECURSIVE inside (value, depth) AS (
      SELECT NEW.meta, 1 UNION ALL SELECT e.value, depth + 1 FROM inside, json_each(inside.value) e
      WHERE e.type IN ('array', 'object') AND depth <= 128) SELECT depth FROM inside)) <= 128, 0);
  SELECT RAISE(ABORT, 'leasehold: id must be text of 1 to max_key bytes (512) without NUL')
    WHERE NOT ifnull(NEW.id IS NULL OR (typeof(NEW.id) = 'text' AND instr(NEW.id, char(0)) = 0
      AND length(CAST(NEW.id AS BLOB)) BETWEEN 1 AND
      ifnull((SELECT value FROM leasehold_state WHERE name = 'max_key'), 512)), 0);
  -- By its id a job is asked for, so it must be a text that can be said: each character of it,
  -- read and written again, is as it was. The two that are read as another are named.
  SELECT RAISE(ABORT, 'leasehold: id must be UTF-8')
    WHERE NEW.id GLOB '*[^ -~]*' AND EXISTS (WITH RECURSIVE place (i) AS (
      SELECT 1 UNION ALL SELECT i + 1 FROM place WHERE i < length(NEW.id))
      SELECT 1 FROM place, (SELECT x'efbfbe' AS one, x'efbfbf' AS other)
      WHERE CAST(substr(NEW.id, i, 1) AS BLOB) NOT IN
        (CAST(char(unicode(substr(NEW.id, i, 1))) AS BLOB), one, other));
  SELECT RAISE(ABORT, 'leasehold: idempotency_key must be text of 1 to max_key bytes (512) without NUL')
    WHERE NOT ifnull(NEW.idempotency_key IS NULL OR (typeof(NEW.idempotency_key) IN ('text', 'integer') AND instr(NEW.idempotency_key, char(0)) = 0
      AND length(CAST(NEW.idempotency_key AS BLOB)) BETWEEN 1 AND
      ifnull((SELECT value FROM leasehold_state WHERE name = 'max_key'), 512)), 0);
  SELECT RAISE(ABORT, 'leasehold: dedup_key must be text of 1 to max_key bytes (512) without NUL')
    WHERE NOT ifnull(NEW.dedup_key IS NULL OR (typeof(NEW.dedup_key) IN ('text', 'integer') AND instr(NEW.dedup_key, char(0)) = 0
      AND length(CAST(NEW.dedup_key AS BLOB)) BETWEEN 1 AND
      ifnull((SELECT value FROM leasehold_state WHERE name = 'max_key'), 512)), 0);
  SELECT RAISE(ABORT, 'leasehold: lock_key must be text of 1 to max_key bytes (512) without NUL')
    WHERE NOT ifnull(NEW.lock_key IS NULL OR (typeof(NEW.lock_key) IN ('text', 'integer') AND instr(NEW.lock_key, char(0)) = 0
      AND length(CAST(NEW.lock_key AS BLOB)) BETWEEN 1 AND
      ifnull((SELECT value FROM leasehold_state WHERE name = 'max_key'), 512)), 0);
  SELECT RAISE(ABORT, 'leasehold: limit_key must be text of 1 to max_key bytes (512) without NUL')
    WHERE NOT ifnull(NEW.limit_key IS NULL OR (typeof(NEW.limit_key) IN ('text', 'integer') AND instr(NEW.limit_key, char(0)) = 0
      AND length(CAST(NEW.limit_key AS BLOB)) BETWEEN 1 AND
      ifnull((SELECT value FROM leasehold_state WHERE name = 'max_key'), 512)), 0);
  SELECT RAISE(ABORT, 'leasehold: tenant must be text of 1 to max_key bytes (512) without NUL')
    WHERE NOT ifnull(NEW.tenant IS NULL OR (typeof(NEW.tenant) IN ('text', 'integer') AND instr(NEW.tenant, char(0)) = 0
      AND length(CAST(NEW.tenant AS BLOB)) BETWEEN 1 AND
      ifnull((SELECT value FROM leasehold_state WHERE name = 'max_key'), 512)), 0);
  SELECT RAISE(ABORT, 'leasehold: organization must be text of 1 to max_key bytes (512) without NUL')
    WHERE NOT ifnull(NEW.organization IS NULL OR (typeof(NEW.organization) IN ('text', 'integer') AND instr(NEW.organization, char(0)) = 0
      AND length(CAST(NEW.organization AS BLOB)) BETWEEN 1 AND
      ifnull((SELECT value FROM leasehold_state WHERE name = 'max_key'), 512)), 0);
  SELECT RAISE(ABORT, 'leasehold: subject_type must be text of 1 to max_key bytes (512) without NUL')
    WHERE NOT ifnull(NEW.subject_type IS NULL OR (typeof(NEW.subject_type) IN ('text', 'integer') AND instr(NEW.subject_type, char(0)) = 0
      AND length(CAST(NEW.subject_type AS BLOB)) BETWEEN 1 AND
      ifnull((SELECT value FROM leasehold_state WHERE name = 'max_key'), 512)), 0);
  SELECT RAISE(ABORT, 'leasehold: subject_id must be text of 1 to max_key bytes (512) without NUL')
    WHERE NOT ifnull(NEW.subject_id IS NULL OR (typeof(NEW.subject_id) IN ('text', 'integer') AND instr(NEW.subject_id, char(0)) = 0
      AND length(CAST(NEW.subject_id AS BLOB)) BETWEEN 1 AND
      ifnull((SELECT value FROM leasehold_state WHERE name = 'max_key'), 512)), 0);
  SELECT RAISE(ABORT, 'leasehold: trace_context must be text of 1 to max_key bytes (512) without NUL')
    WHERE NOT ifnull(NEW.trace_context IS NULL OR (typeof(NEW.trace_context) = 'text' AND instr(NEW.trace_context, char(0)) = 0
      AND length(CAST(NEW.trace_context AS BLOB)) BETWEEN 1 AND
      ifnull((SELECT value FROM leasehold_state WHERE name = 'max_key'), 512)), 0);
  SELECT RAISE(ABORT, 'leasehold: priority must be a whole number from -1000 to 1000')
    WHERE NOT ifnull(NEW.priority IS NULL OR (typeof(NEW.priority) IN ('integer', 'real')
      AND NEW.priority = CAST(NEW.priority AS INTEGER)
      AND NEW.priority BETWEEN -1000 AND 1000), 0);
  SELECT RAISE(ABORT, 'leasehold: max_attempts must be a whole number from 1 to 1000000')
    WHERE NOT ifnull(NEW.max_attempts IS NULL OR (typeof(NEW.max_attempts) IN ('integer', 'real')
      AND NEW.max_attempts = CAST(NEW.max_attempts AS INTEGER)
      AND NEW.max_attempts BETWEEN 1 AND 1000000), 0);
  SELECT RAISE(ABORT, 'leasehold: run_at must be UTC milliseconds from 1970 to the end of 2199')
    WHERE NOT ifnull(NEW.run_at IS NULL OR (typeof(NEW.run_at) IN ('integer', 'real')
      AND NEW.run_at = CAST(NEW.run_at AS INTEGER)
      AND NEW.run_at BETWEEN 0 AND 7258118399999), 0);
  SELECT RAISE(ABORT, 'leasehold: created_at must be UTC milliseconds from 1970 to the end of 2199')
    WHERE NOT ifnull(NEW.created_at IS NULL OR (typeof(NEW.created_at) IN ('integer', 'real')
      AND NEW.created_at = CAST(NEW.created_at AS INTEGER)
      AND NEW.created_at BETWEEN 0 AND 7258118399999), 0);
  SELECT RAISE(ABORT, 'leasehold: delay must be whole milliseconds from 0')
    WHERE NOT ifnull(NEW.delay IS NULL OR (typeof(NEW.delay) IN ('integer', 'real')
      AND NEW.delay = CAST(NEW.delay AS INTEGER) AND NEW.delay BETWEEN 0 AND 7258118400000), 0);
  SELECT RAISE(ABORT, 'leasehold: keep_key_for must be whole milliseconds from 1')
    WHERE NOT ifnull(NEW.keep_key_for IS NULL OR (typeof(NEW.keep_key_for) IN ('integer', 'real')
      AND NEW.keep_key_for = CAST(NEW.keep_key_for AS INTEGER) AND NEW.keep_key_for BETWEEN 1 AND 7258118400000), 0);
  SELECT RAISE(ABORT, 'leasehold: unique_for must be whole milliseconds from 1')
    WHERE NOT ifnull(NEW.unique_for IS NULL OR (typeof(NEW.unique_for) IN ('integer', 'real')
      AND NEW.unique_for = CAST(NEW.unique_for AS INTEGER) AND NEW.unique_for BETWEEN 1 AND 7258118400000), 0);
  SELECT RAISE(ABORT, 'leasehold: keep_key_for needs an idempotency_key')
    WHERE NOT ifnull(NEW.keep_key_for IS NULL OR NEW.idempotency_key IS NOT NULL, 0);
  SELECT RAISE(ABORT, 'leasehold: unique_for needs a dedup_key')
    WHERE NOT ifnull(NEW.unique_for IS NULL OR NEW.dedup_key IS NOT NULL, 0);
  SELECT RAISE(ABORT, 'leasehold: reason is in no registry; see leasehold_reasons')
    WHERE NEW.reason IS NOT NULL
      AND NOT EXISTS (SELECT 1 FROM leasehold_reasons WHERE id = NEW.reason);
  -- The id as it is kept: the bytes of a UUID, any other text as it is.
  DELETE FROM leasehold_new;
  INSERT INTO leasehold_new (one, now, id)
    SELECT 1, t.now, CASE
      WHEN NEW.id IS NULL THEN CAST(
        substr(b.bytes, (t.now >> 40 & 255) + 1, 1) ||
        substr(b.bytes, (t.now >> 32 & 255) + 1, 1) ||
        substr(b.bytes, (t.now >> 24 & 255) + 1, 1) ||
        substr(b.bytes, (t.now >> 16 & 255) + 1, 1) ||
        substr(b.bytes, (t.now >> 8 & 255) + 1, 1) ||
        substr(b.bytes, (t.now >> 0 & 255) + 1, 1) ||
        substr(b.bytes, (112 | (random() & 15)) + 1, 1) || randomblob(1) ||
        substr(b.bytes, (128 | (random() & 63)) + 1, 1) || randomblob(7) AS BLOB)
      WHEN NEW.id GLOB
        '[0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f]-[0-9a-f' ||
        '][0-9a-f][0-9a-f][0-9a-f]-[0-9a-f][0-9a-f][0-9a-f][0-9a-f]-[0-9a-f][0-9a-f][0-9a-f][0-9a-f]-[0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f]' THEN CAST(
        substr(b.bytes, 16 * instr('123456789abcdef', substr(NEW.id, 1, 1)) + instr('123456789abcdef', substr(NEW.id, 2, 1)) + 1, 1) ||
        substr(b.bytes, 16 * instr('123456789abcdef', substr(NEW.id, 3, 1)) + instr('123456789abcdef', substr(NEW.id, 4, 1)) + 1, 1) ||
        substr(b.bytes, 16 * instr('123456789abcdef', substr(NEW.id, 5, 1)) + instr('123456789abcdef', substr(NEW.id, 6, 1)) + 1, 1) ||
        substr(b.bytes, 16 * instr('123456789abcdef', substr(NEW.id, 7, 1)) + instr('123456789abcdef', substr(NEW.id, 8, 1)) + 1, 1) ||
        substr(b.bytes, 16 * instr('123456789abcdef', substr(NEW.id, 10, 1)) + instr('123456789abcdef', substr(NEW.id, 11, 1)) + 1, 1) ||
        substr(b.bytes, 16 * instr('123456789abcdef', substr(NEW.id, 12, 1)) + instr('123456789abcdef', substr(NEW.id, 13, 1)) + 1, 1) ||
        substr(b.bytes, 16 * instr('123456789abcdef', substr(NEW.id, 15, 1)) + instr('123456789abcdef', substr(NEW.id, 16, 1)) + 1, 1) ||
        substr(b.bytes, 16 * instr('123456789abcdef', substr(NEW.id, 17, 1)) + instr('123456789abcdef', substr(NEW.id, 18, 1)) + 1, 1) ||
        substr(b.bytes, 16 * instr('123456789abcdef', substr(NEW.id, 20, 1)) + instr('123456789abcdef', substr(NEW.id, 21, 1)) + 1, 1) ||
        substr(b.bytes, 16 * instr('123456789abcdef', substr(NEW.id, 22, 1)) + instr('123456789abcdef', substr(NEW.id, 23, 1)) + 1, 1) ||
        substr(b.bytes, 16 * instr('123456789abcdef', substr(NEW.id, 25, 1)) + instr('123456789abcdef', substr(NEW.id, 26, 1)) + 1, 1) ||
        substr(b.bytes, 16 * instr('123456789abcdef', substr(NEW.id, 27, 1)) + instr('123456789abcdef', substr(NEW.id, 28, 1)) + 1, 1) ||
        substr(b.bytes, 16 * instr('123456789abcdef', substr(NEW.id, 29, 1)) + instr('123456789abcdef', substr(NEW.id, 30, 1)) + 1, 1) ||
        substr(b.bytes, 16 * instr('123456789abcdef', substr(NEW.id, 31, 1)) + instr('123456789abcdef', substr(NEW.id, 32, 1)) + 1, 1) ||
        substr(b.bytes, 16 * instr('123456789abcdef', substr(NEW.id, 33, 1)) + instr('123456789abcdef', substr(NEW.id, 34, 1)) + 1, 1) ||
        substr(b.bytes, 16 * instr('123456789abcdef', substr(NEW.id, 35, 1)) + instr('123456789abcdef', substr(NEW.id, 36, 1)) + 1, 1) AS BLOB)
      ELSE NEW.id END
    FROM leasehold_bytes b, (SELECT ifnull(NEW.created_at, CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)) AS now) t;
  SELECT RAISE(ABORT, 'leasehold: delay must end before the year 2200')
    WHERE NEW.delay IS NOT NULL AND (SELECT now FROM leasehold_new) + NEW.delay >= 7258118400000;
  -- The keys, in their order. Where one names a job there is none to enqueue.
  DELETE FROM leasehold_new WHERE
    EXISTS (SELECT 1 FROM leasehold_job j WHERE j.id = leasehold_new.id)
    OR EXISTS (SELECT 1 FROM leasehold_job
      WHERE idempotency_key = NEW.idempotency_key
        AND ifnull(tenant, x'') = ifnull(CAST(NEW.tenant AS TEXT), x'')
        AND ifnull(organization, x'') = ifnull(CAST(NEW.organization AS TEXT), x''))
    OR EXISTS (SELECT 1 FROM leasehold_kept_keys
      WHERE sort = 'idempotency_key' AND key = NEW.idempotency_key
        AND ifnull(tenant, x'') = ifnull(CAST(NEW.tenant AS TEXT), x'')
        AND ifnull(organization, x'') = ifnull(CAST(NEW.organization AS TEXT), x'')
        AND until > leasehold_new.now)
    OR EXISTS (SELECT 1 FROM leasehold_job
      WHERE dedup_key = NEW.dedup_key AND finished_at IS NULL
        AND ifnull(tenant, x'') = ifnull(CAST(NEW.tenant AS TEXT), x'')
        AND ifnull(organization, x'') = ifnull(CAST(NEW.organization AS TEXT), x''))
    OR EXISTS (SELECT 1 FROM leasehold_kept_keys
      WHERE sort = 'dedup_key' AND key = NEW.dedup_key
        AND ifnull(tenant, x'') = ifnull(CAST(NEW.tenant AS TEXT), x'')
        AND ifnull(organization, x'') = ifnull(CAST(NEW.organization AS TEXT), x'')
        AND until > leasehold_new.now);
  SELECT RAISE(IGNORE) WHERE NOT EXISTS (SELECT 1 FROM leasehold_new);
  SELECT RAISE(ABORT, 'leasehold: lock_held; its holder is the live job with this lock_key')
    WHERE EXISTS (SELECT 1 FROM leasehold_job
    WHERE lock_key = NEW.lock_key AND finished_at IS NULL
      AND ifnull(tenant, x'') = ifnull(CAST(NEW.tenant AS TEXT), x'')
      AND ifnull(organization, x'') = ifnull(CAST(NEW.organization AS TEXT), x''));
  -- The row. Names are added where they are new.
  INSERT INTO leasehold_names (name) SELECT NEW.kind
    WHERE NOT EXISTS (SELECT 1 FROM leasehold_names WHERE name = NEW.kind);
  UPDATE leasehold_new SET
    kind = (SELECT id FROM leasehold_names WHERE name = NEW.kind),
    key = 1 + max(ifnull((SELECT max(key) FROM leasehold_job), 0),
      ifnull((SELECT value FROM leasehold_state WHERE name = 'last_key'), 0));
  UPDATE leasehold_new SET queue = ifnull((SELECT facts ->> 'queue' FROM leasehold_kinds
    WHERE leasehold_kinds.kind = leasehold_new.kind), 'default');
  INSERT INTO leasehold_names (name) SELECT queue FROM leasehold_new
    WHERE queue NOT IN (SELECT name FROM leasehold_names);
  INSERT INTO leasehold_job (key, id, kind, queue, status, lane, priority, run_at, created_at,
    updated_at, attempts, max_attempts, epoch, stalls, seq, tenant, organization,
    idempotency_key, dedup_key, lock_key, limit_key)
    SELECT n.key, n.id, n.kind, q.id, 0,
      CASE WHEN ifnull(n.now + NEW.delay, ifnull(NEW.run_at, n.now)) > n.now THEN 0 ELSE 1 END,
      ifnull(NEW.priority, 0), ifnull(n.now + NEW.delay, ifnull(NEW.run_at, n.now)), n.now,
      n.now, 0, ifnull(NEW.max_attempts, ifnull((SELECT facts ->> 'max_attempts'
      FROM leasehold_kinds WHERE leasehold_kinds.kind = n.kind), 5)), 0, 0, 0, NEW.tenant,
      NEW.organization, NEW.idempotency_key, NEW.dedup_key, NEW.lock_key, NEW.limit_key
    FROM leasehold_new n JOIN leasehold_names q ON q.name = n.queue;
  INSERT INTO leasehold_payload (job, payload)
    SELECT key, NEW.payload FROM leasehold_new WHERE NEW.payload IS NOT NULL;
  INSERT INTO leasehold_label (job, reason, subject_type, subject_id, meta, trace_context)
    SELECT key, NEW.reason, NEW.subject_type, NEW.subject_id, NEW.meta, NEW.trace_context
    FROM leasehold_new WHERE ifnull(NEW.reason, ifnull(NEW.subject_type, ifnull(NEW.subject_id,
      ifnull(NEW.meta, NEW.trace_context)))) IS NOT NULL;
  INSERT INTO leasehold_lanes (kind, queue)
    SELECT n.kind, q.id FROM leasehold_new n JOIN leasehold_names q ON q.name = n.queue
    WHERE NOT EXISTS (SELECT 1 FROM leasehold_lanes l WHERE l.kind = n.kind AND l.queue = q.id);
  DELETE FROM leasehold_kept_keys WHERE NEW.keep_key_for IS NOT NULL AND sort = 'idempotency_key'
    AND key = NEW.idempotency_key AND ifnull(tenant, x'') = ifnull(CAST(NEW.tenant AS TEXT), x'')
      AND ifnull(organization, x'') = ifnull(CAST(NEW.organization AS TEXT), x'');
  INSERT INTO leasehold_kept_keys (sort, key, tenant, organization, id, until)
    SELECT 'idempotency_key', NEW.idempotency_key, NEW.tenant, NEW.organization, id, now + NEW.keep_key_for
    FROM leasehold_new WHERE NEW.keep_key_for IS NOT NULL;
  DELETE FROM leasehold_kept_keys WHERE NEW.unique_for IS NOT NULL AND sort = 'dedup_key'
    AND key = NEW.dedup_key AND ifnull(tenant, x'') = ifnull(CAST(NEW.tenant AS TEXT), x'')
      AND ifnull(organization, x'') = ifnull(CAST(NEW.organization AS TEXT), x'');
  INSERT INTO leasehold_kept_keys (sort, key, tenant, organization, id, until)
    SELECT 'dedup_key', NEW.dedup_key, NEW.tenant, NEW.organization, id, now + NEW.unique_for
    FROM leasehold_new WHERE NEW.unique_for IS NOT NULL;
  DELETE FROM leasehold_new;
END;
