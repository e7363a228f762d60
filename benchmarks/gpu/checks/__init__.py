"""The checks T1 to T9 and facts about the driver; each is a function from a Bench to a Judgement."""
