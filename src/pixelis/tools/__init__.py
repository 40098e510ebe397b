"""Six executable pixel tools, the toolbox that runs them, and the models behind them."""
