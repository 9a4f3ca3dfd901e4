"""Rules of this service that are pure functions of what was seen."""
