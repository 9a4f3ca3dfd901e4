"""The interface between a vendor and the engine, and the parts that most vendors share."""
