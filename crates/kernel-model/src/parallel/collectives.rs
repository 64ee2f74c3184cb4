//! What ranks do together. torch.distributed does it; here it is counted.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use kernel_bridge::{BridgeError, ProcessGroup};
use tch::Tensor;

use crate::error::{ModelError, Result};

/// Operations of all ranks at once. Each is called by every rank, in the same order.
pub trait Collectives: Send + Sync + fmt::Debug {
    /// This process, from 0.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn ranks(&self) -> usize;

    /// Replaces a contiguous tensor by the sum over all ranks.
    fn sum(&self, tensor: &mut Tensor) -> Result<()>;

    /// The tensors of all ranks, equal in shape, by rank.
    fn gather(&self, tensor: &Tensor) -> Result<Vec<Tensor>>;

    /// Replaces a contiguous tensor by the first rank's.
    fn broadcast(&self, tensor: &mut Tensor) -> Result<()>;

    /// How many of each there were.
    fn counts(&self) -> Counts;
}

/// Numbers of collective operations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sums.
    pub sums: u64,
    /// Gathers.
    pub gathers: u64,
    /// Broadcasts.
    pub broadcasts: u64,
}

impl Counts {
    /// All together.
    pub fn total(self) -> u64 {
        self.sums + self.gathers + self.broadcasts
    }

    /// What came after an earlier count.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            sums: self.sums - earlier.sums,
            gathers: self.gathers - earlier.gathers,
            broadcasts: self.broadcasts - earlier.broadcasts,
        }
    }
}

/// The process group that torchrun's environment describes.
#[derive(Debug)]
pub struct TorchDistributed {
    group: ProcessGroup,
    sums: AtomicU64,
    gathers: AtomicU64,
    broadcasts: AtomicU64,
    finished: AtomicU64,
}

impl TorchDistributed {
    /// Collectives of a group.
    pub fn new(group: ProcessGroup) -> Self {
        Self {
            group,
            sums: AtomicU64::default(),
            gathers: AtomicU64::default(),
            broadcasts: AtomicU64::default(),
            finished: AtomicU64::default(),
        }
    }

    /// How many operations this rank has begun, and how many it has ended. One more begun than ended
    /// means that it waits for others.
    pub fn progress(&self) -> (u64, u64) {
        (self.counts().total(), self.finished.load(Ordering::Relaxed))
    }

    fn counted<T>(
        &self,
        counter: &AtomicU64,
        operation: &'static str,
        run: impl FnOnce() -> Result<T, BridgeError>,
    ) -> Result<T> {
        counter.fetch_add(1, Ordering::Relaxed);
        let outcome = run().map_err(|error| ModelError::Collective {
            rank: self.group.rank(),
            operation,
            problem: error.to_string(),
        });
        self.finished.fetch_add(1, Ordering::Relaxed);
        outcome
    }
}

impl Collectives for TorchDistributed {
    fn rank(&self) -> usize {
        self.group.rank()
    }

    fn ranks(&self) -> usize {
        self.group.size()
    }

    fn sum(&self, tensor: &mut Tensor) -> Result<()> {
        self.counted(&self.sums, "sum a result", || self.group.all_reduce(tensor))
    }

    fn gather(&self, tensor: &Tensor) -> Result<Vec<Tensor>> {
        self.counted(&self.gathers, "gather results", || {
            self.group.all_gather(tensor)
        })
    }

    fn broadcast(&self, tensor: &mut Tensor) -> Result<()> {
        self.counted(&self.broadcasts, "share the request", || {
            self.group.broadcast(tensor)
        })
    }

    fn counts(&self) -> Counts {
        Counts {
            sums: self.sums.load(Ordering::Relaxed),
            gathers: self.gathers.load(Ordering::Relaxed),
            broadcasts: self.broadcasts.load(Ordering::Relaxed),
        }
    }
}
