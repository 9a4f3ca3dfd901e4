#!/bin/sh
# Writes last month (UTC) of the ledger as CSV files into a new folder. HAMI_POSTGRES_DSN: of hami_reader.
set -eu
archive=hami-before-$(date --utc +%Y-%m)
mkdir "$archive" && cd "$archive" && psql --no-psqlrc --set ON_ERROR_STOP=1 "$HAMI_POSTGRES_DSN" <<'SQL'
SET TIME ZONE 'UTC';
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SELECT date_trunc('month', now()) - interval '1 month' AS since, date_trunc('month', now()) AS until \gset
COPY (SELECT * FROM allocations WHERE ended_at >= :'since' AND ended_at < :'until') TO STDOUT CSV HEADER \g allocations.csv
COPY (SELECT x.* FROM allocation_periods x JOIN allocations a ON a.id = x.allocation_id WHERE a.ended_at >= :'since' AND a.ended_at < :'until') TO STDOUT CSV HEADER \g allocation_periods.csv
COPY (SELECT x.* FROM allocation_devices x JOIN allocations a ON a.id = x.allocation_id WHERE a.ended_at >= :'since' AND a.ended_at < :'until') TO STDOUT CSV HEADER \g allocation_devices.csv
COPY (SELECT x.* FROM allocation_containers x JOIN allocations a ON a.id = x.allocation_id WHERE a.ended_at >= :'since' AND a.ended_at < :'until') TO STDOUT CSV HEADER \g allocation_containers.csv
COPY (SELECT x.* FROM allocation_claims x JOIN allocations a ON a.id = x.allocation_id WHERE a.ended_at >= :'since' AND a.ended_at < :'until') TO STDOUT CSV HEADER \g allocation_claims.csv
COPY (SELECT * FROM preempted WHERE planned_at >= :'since' AND planned_at < :'until' ORDER BY room_id, victim_id) TO STDOUT CSV HEADER \g preempted.csv
COPY (SELECT * FROM allocation_events WHERE at >= :'since' AND at < :'until' ORDER BY id) TO STDOUT CSV HEADER \g allocation_events.csv
COPY (SELECT * FROM drift_journal WHERE at >= :'since' AND at < :'until' ORDER BY id) TO STDOUT CSV HEADER \g drift_journal.csv
COPY (SELECT * FROM operator_calls WHERE at >= :'since' AND at < :'until' ORDER BY id) TO STDOUT CSV HEADER \g operator_calls.csv
COPY (SELECT * FROM admission_refusals WHERE at >= :'since' AND at < :'until' ORDER BY id) TO STDOUT CSV HEADER \g admission_refusals.csv
COPY (SELECT * FROM device_periods WHERE ended_at >= :'since' AND ended_at < :'until' ORDER BY id) TO STDOUT CSV HEADER \g device_periods.csv
COPY (SELECT * FROM quota_periods WHERE ended_at >= :'since' AND ended_at < :'until' ORDER BY id) TO STDOUT CSV HEADER \g quota_periods.csv
COPY (SELECT * FROM node_gaps WHERE ended_at >= :'since' AND ended_at < :'until' ORDER BY node, began_at) TO STDOUT CSV HEADER \g node_gaps.csv
COPY (SELECT * FROM device_health_events WHERE at >= :'since' AND at < :'until' ORDER BY id) TO STDOUT CSV HEADER \g device_health_events.csv
COMMIT;
SQL
