"""Distance decays in time linear in the tokens of a grid: windows, a bilateral grid, and the choice of both."""
