"""Functions that several methods for wrong labels share: networks, linear projections, corrected labels."""
