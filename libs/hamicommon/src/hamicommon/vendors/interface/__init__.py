"""Interface between vendors and the engine, with the parts that most vendors share."""
