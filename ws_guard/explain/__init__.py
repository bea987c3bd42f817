"""From a crash log, or from dead workers' slots, to the setting that fixes it.

`logs.explain_log` reads a log, `board.explain_board` a board: whoever reads the one does not load
the other.
"""
