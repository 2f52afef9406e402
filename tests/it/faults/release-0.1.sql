-- What a database of release 0.1 holds beside its schema: the rows of every sort of job that an
-- upgrade meets. It is never changed; a later release gets a file of its own.
INSERT INTO leasehold_names (id, name) VALUES (1, 'act'), (2, 'default'), (3, 'bystander'),
  (4, '0123456789abcdef0123456789abcdef');
INSERT INTO leasehold_kinds (kind, facts, registered_at) VALUES (1, '{"queue":"default",
  "lease":30000,"max_attempts":3,"retry":{"strategy":"fixed","base":1000,"cap":1000,
  "jitter":false},"defer":{"base":30000,"cap":900000,"max_hits":10},"orphan":"requeue",
  "orphan_backoff":{"base":0,"cap":600000},"max_stalls":3,"timeout":600000,"slice":300000,
  "concurrency":null,"rate":null,"provider":null,"hooks":false,"keep":{"completed":null,
  "cancelled":null,"failed":null}}', 1577836800000);
INSERT INTO leasehold_lanes (kind, queue) VALUES (1, 2), (3, 2);
INSERT INTO leasehold_job (key, id, kind, queue, status, lane, priority, run_at, created_at,
  updated_at, started_at, finished_at, attempts, max_attempts, epoch, stalls, seq, token, owner,
  lease_until, heartbeat_at, settled_epoch, dedup_key) VALUES
  (1, 'ready-1', 1, 2, 0, 1, 0, 1577836800000, 1577836800000, 1577836800000, NULL, NULL, 0, 3, 0,
    0, 0, NULL, NULL, NULL, NULL, NULL, NULL),
  (2, 'ready-2', 1, 2, 0, 1, 5, 1577836800000, 1577836800000, 1577836800000, NULL, NULL, 0, 3, 0,
    0, 0, NULL, NULL, NULL, NULL, NULL, 'k'),
  (3, x'016f5e66e800715c82892ec2d0a91670', 1, 2, 0, 1, 0, 1577836800000, 1577836800000,
    1577836800000, NULL, NULL, 0, 3, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL),
  (4, 'scheduled-1', 1, 2, 0, 0, 0, 1577840400000, 1577836800000, 1577836800000, NULL, NULL, 0, 3,
    0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL),
  (5, 'scheduled-2', 1, 2, 0, 0, 0, 1577923200000, 1577836800000, 1577836800000, NULL, NULL, 0, 3,
    0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL),
  (6, 'running', 1, 2, 1, NULL, 0, 1577836800000, 1577836800000, 1577836800000, 1577836800000,
    NULL, 1, 3, 1, 0, 0, x'000102030405060708090a0b0c0d0e0f', 4, 1577836830000, 1577836800000,
    NULL, NULL),
  (7, 'retrying', 1, 2, 0, 0, 0, 1577836801000, 1577836800000, 1577836800000, 1577836800000, NULL,
    1, 3, 1, 0, 0, NULL, 4, NULL, NULL, NULL, NULL),
  (8, 'completed', 1, 2, 2, NULL, 0, 1577836800000, 1577836800000, 1577836800000, 1577836800000,
    1577836800000, 1, 3, 1, 0, 0, NULL, 4, NULL, NULL, 1, NULL),
  (9, 'bystander', 3, 2, 0, 1, 0, 1577836800000, 1577836800000, 1577836800000, NULL, NULL, 0, 5, 0,
    0, 0, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO leasehold_payload (job, payload) VALUES (1, '"Done"'), (2, '"Done"'), (3, '"Done"'),
  (4, '"Done"'), (5, '"Done"'), (6, '"Done"'), (7, '"Done"'), (8, '"Done"');
INSERT INTO leasehold_result (job, result) VALUES (8, '{"kept": 18446744073709551615}');
INSERT INTO leasehold_detail (job, error_class, last_error) VALUES (7, 'transient', 'again');
INSERT INTO leasehold_checkpoints (job, key, epoch, value) VALUES (7, '', 1, '15');
INSERT INTO leasehold_attempts (n, job, epoch, owner, claimed_at, ended_at, outcome, error)
  VALUES (1, 7, 1, 4, 1577836800000, 1577836800000, 'failed', 'again');
