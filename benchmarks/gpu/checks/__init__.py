"""The checks T1 to T9 and facts about the driver: each a function that takes a Bench and returns a Judgement."""
