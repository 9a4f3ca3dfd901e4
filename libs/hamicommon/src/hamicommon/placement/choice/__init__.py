"""Choose the slices of a node's cards for a request, by the standard rules or the vendor's."""
