"""Tables and figures of single chapters; what several share stands in :mod:`ncbook.training`."""
