//! The verbs device: what `write` to `/dev/infiniband/uverbs0` does.
