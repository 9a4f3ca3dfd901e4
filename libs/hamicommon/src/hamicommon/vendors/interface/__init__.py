"""What a vendor is to the engine, and the parts that most vendors share."""
