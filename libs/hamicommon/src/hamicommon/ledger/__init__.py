"""The ledger in Postgres: tables, migrations, connections, questions and outbox."""
