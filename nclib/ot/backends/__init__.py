"""The solvers behind :mod:`nclib.ot`: which of them computes what.

=================== ==============================================================================
module              work
=================== ==============================================================================
``solve``           choice of the backend for a checked problem
``cpu``             one problem after the other in NumPy; the plain case of a training step
``cpu_extended``    the extended formulation on the kernel, with LAPACK
``cpu_capped``      the capped formulation on the kernel, with LAPACK
``cpu_plans``       many small problems, a fixed number of passes, with gradients, in NumPy
``fused``           the same in one launch on a GPU, by Triton, when asked for
``fused_partial``   the extended formulation in one launch on a GPU, by Triton, when asked for
``device``          batches of both formulations in torch on any device
``device_loop``     the loop of that backend, at falling regularisation
``unrolled``        plain loops of differentiable operations
``published``       the loop and stop rule of L2RM's official code
=================== ==============================================================================
"""
