"""One file per technology; library exceptions stop here."""
