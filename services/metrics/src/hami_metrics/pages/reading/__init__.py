"""The ledger, read for the pages: every statement bounded in time and in rows."""
