"""Looking into gradients: pictures of the autograd graph, what a call runs, hooks, and an audit."""
