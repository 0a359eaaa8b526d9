"""How many machines a wish takes, from measured figures.

figures     what was measured, and where each number comes from
tails       the slowest of many answers: a seeded simulation
planner     the fewest machines that hold the keywords and keep the latency at the load
"""
