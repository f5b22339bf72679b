"""What `executors.ray` is made of: caches in the object store, model actors, and engines that ask them."""
