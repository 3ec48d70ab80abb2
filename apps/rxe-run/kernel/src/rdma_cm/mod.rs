//! The device of the connection manager: what `write` to `/dev/infiniband/rdma_cm` does.
