"""The main job without a GPU, as a play in two acts: see `play`."""
