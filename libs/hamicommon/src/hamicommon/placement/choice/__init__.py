"""Which slices of a node's cards a request gets, by our rules or by the vendor's chooser."""
