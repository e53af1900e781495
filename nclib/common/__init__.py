"""Ground of the package: registries, options, tokens, files and prefetching."""
