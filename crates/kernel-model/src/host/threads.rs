//! A loop over chunks on several threads, cheap enough for loops of ten microseconds.
//!
//! A decode step has over a hundred such loops. Pools made for tasks wake a sleeping thread for
//! each, which costs more than the loop; here the helpers look for work for a while before they
//! sleep. The caller works too and never waits for a helper that has not begun: parts are taken
//! one by one from a counter, so a helper that the system has put aside costs nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError, TryLockError};
use std::thread;

/// Looks for work before a helper sleeps: some fifty microseconds, longer than anything that lies
/// between two loops of a step.
const LOOKS: u32 = 2_000;

/// Runs `work` on each chunk of `data`, with as many threads as libtorch uses. `work` gets the
/// number of the chunk and the chunk.
pub(super) fn for_chunks<T: Send>(
    data: &mut [T],
    chunk: usize,
    work: &(dyn Fn(usize, &mut [T]) + Sync),
) {
    let threads = usize::try_from(tch::get_num_threads()).unwrap_or(1);
    let parts = data.len().div_ceil(chunk.max(1));
    if threads < 2 || parts < 2 {
        for (part, chunk) in data.chunks_mut(chunk.max(1)).enumerate() {
            work(part, chunk);
        }
        return;
    }
    let (length, start) = (data.len(), SendPointer(data.as_mut_ptr()));
    let one = |part: usize| {
        let from = part * chunk;
        // SAFETY: every part number below `parts` is handed out once, chunks of different parts do
        // not overlap and lie inside `data`, which this function has borrowed until all are done.
        #[expect(unsafe_code, reason = "disjoint chunks on several threads")]
        let chunk = unsafe {
            std::slice::from_raw_parts_mut(start.get().add(from), chunk.min(length - from))
        };
        work(part, chunk);
    };
    Pool::global().run(threads - 1, parts, &one);
}

/// The start of a slice whose chunks go to different threads.
struct SendPointer<T>(*mut T);

impl<T> SendPointer<T> {
    fn get(&self) -> *mut T {
        self.0
    }
}

// SAFETY: the pointer is only used to make slices that do not overlap, of numbers that may be sent.
#[expect(unsafe_code, reason = "disjoint chunks on several threads")]
unsafe impl<T: Send> Sync for SendPointer<T> {}

type Work<'a> = &'a (dyn Fn(usize) + Sync);

/// The helper threads of the process.
struct Pool {
    shared: &'static Shared,
    /// Number of helpers that run; held by whoever runs a loop.
    helpers: Mutex<usize>,
}

/// What caller and helpers share.
#[derive(Default)]
struct Shared {
    /// Number of the loop in the upper half, parts that nobody has taken yet in the lower.
    state: AtomicU64,
    /// Work of the loop: a `Work` on the caller's stack.
    work: AtomicPtr<()>,
    /// Parts that are done.
    done: AtomicUsize,
    /// Helpers that the loop may use.
    limit: AtomicUsize,
    /// Whether a part panicked.
    panicked: AtomicBool,
    /// Helpers that sleep.
    sleeping: AtomicUsize,
    gate: Mutex<()>,
    wake: Condvar,
}

impl Pool {
    fn global() -> &'static Self {
        static POOL: OnceLock<Pool> = OnceLock::new();
        POOL.get_or_init(|| Self {
            // Helpers live as long as the process.
            shared: Box::leak(Box::default()),
            helpers: Mutex::new(0),
        })
    }

    fn run(&self, limit: usize, parts: usize, work: Work<'_>) {
        // A second caller at the same time, or a loop inside a loop, does its work alone.
        let helpers = match self.helpers.try_lock() {
            Ok(helpers) => Some(helpers),
            // A part of an earlier loop panicked; the number is right all the same.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        let (Some(mut helpers), Ok(count)) = (helpers, u32::try_from(parts)) else {
            (0..parts).for_each(work);
            return;
        };
        while *helpers < limit {
            let (shared, index) = (self.shared, *helpers);
            let spawned = thread::Builder::new()
                .name(format!("host-op-{index}"))
                .spawn(move || shared.help(index));
            if spawned.is_err() {
                // Fewer helpers than wanted; the loop ends all the same.
                break;
            }
            *helpers += 1;
        }
        self.shared.run(limit, count, &work);
    }
}

impl Shared {
    /// Publishes a loop, works on it, and returns when all its parts are done.
    fn run(&self, limit: usize, parts: u32, work: &Work<'_>) {
        self.done.store(0, Ordering::Relaxed);
        self.panicked.store(false, Ordering::Relaxed);
        self.limit.store(limit, Ordering::Relaxed);
        self.work.store(
            std::ptr::from_ref(work).cast_mut().cast(),
            Ordering::Release,
        );
        let number = (self.state.load(Ordering::Relaxed) >> 32).wrapping_add(1);
        self.state
            .store(number << 32 | u64::from(parts), Ordering::SeqCst);
        if self.sleeping.load(Ordering::SeqCst) > 0 {
            let _gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
            self.wake.notify_all();
        }
        while self.take_part() {}
        let mut looks = 0;
        while self.done.load(Ordering::Acquire) < parts as usize {
            looks += 1;
            if looks < LOOKS {
                std::hint::spin_loop();
            } else {
                thread::yield_now();
            }
        }
        assert!(
            !self.panicked.load(Ordering::Relaxed),
            "a part of a loop on several threads panicked"
        );
    }

    /// Does one part of the loop at hand; `false` if there is none.
    fn take_part(&self) -> bool {
        let mut state = self.state.load(Ordering::SeqCst);
        loop {
            // The parts that are left are the lower half.
            let Some(part) = (state as u32).checked_sub(1) else {
                return false;
            };
            let work = self.work.load(Ordering::Acquire).cast::<Work<'_>>();
            match self.state.compare_exchange_weak(
                state,
                state - 1,
                Ordering::AcqRel,
                Ordering::SeqCst,
            ) {
                Ok(_) => {
                    // SAFETY: the exchange succeeded, so the loop is the one whose state was read and
                    // a part of it was not yet done; `run` stores the next `work`, and returns from
                    // the frame that holds this one, only when all parts are done.
                    #[expect(unsafe_code, reason = "work that lies on the caller's stack")]
                    let work = unsafe { *work };
                    if catch_unwind(AssertUnwindSafe(|| work(part as usize))).is_err() {
                        self.panicked.store(true, Ordering::Relaxed);
                    }
                    self.done.fetch_add(1, Ordering::Release);
                    return true;
                }
                Err(now) => state = now,
            }
        }
    }

    /// What a helper does all its life.
    fn help(&self, index: usize) {
        let wanted = || {
            self.state.load(Ordering::SeqCst) as u32 > 0
                && index < self.limit.load(Ordering::Relaxed)
        };
        let mut looks = 0;
        loop {
            if wanted() && self.take_part() {
                looks = 0;
            } else if looks < LOOKS {
                looks += 1;
                std::hint::spin_loop();
            } else {
                let mut gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
                // Counted before the last look: `run` looks at the count after it publishes.
                self.sleeping.fetch_add(1, Ordering::SeqCst);
                while !wanted() {
                    gate = self.wake.wait(gate).unwrap_or_else(PoisonError::into_inner);
                }
                self.sleeping.fetch_sub(1, Ordering::SeqCst);
                looks = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chunk_is_worked_on_once_with_its_number() {
        for length in [0, 1, 7, 64, 1000] {
            for _ in 0..200 {
                let mut data = vec![0_usize; length];
                for_chunks(&mut data, 7, &|part, chunk| {
                    for (n, number) in chunk.iter_mut().enumerate() {
                        *number += part * 7 + n + 1;
                    }
                });
                assert!(data.iter().copied().eq(1..=length));
            }
        }
    }

    #[test]
    fn callers_at_the_same_time_and_loops_inside_loops_do_not_disturb_each_other() {
        let count = |_: usize| {
            let mut data = vec![0_u32; 500];
            for_chunks(&mut data, 10, &|_, chunk| {
                let mut inner = vec![0_u32; 50];
                for_chunks(&mut inner, 5, &|_, inner| inner.fill(2));
                chunk.fill(inner.iter().sum());
            });
            data.iter().sum::<u32>()
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|n| scope.spawn(move || count(n))).collect();
            for thread in threads {
                assert_eq!(thread.join().unwrap(), 50_000);
            }
        });
    }

    #[test]
    fn helpers_that_went_to_sleep_come_back() {
        for _ in 0..3 {
            thread::sleep(std::time::Duration::from_millis(20));
            let mut data = vec![0_u8; 100];
            for_chunks(&mut data, 1, &|_, chunk| chunk.fill(1));
            assert!(data.iter().all(|number| *number == 1));
        }
    }

    #[test]
    fn a_panic_in_a_part_reaches_the_caller() {
        let outcome = catch_unwind(|| {
            let mut data = vec![0_u8; 100];
            for_chunks(&mut data, 1, &|part, _| assert!(part != 50, "on purpose"));
        });
        assert!(outcome.is_err());
        let mut data = vec![0_u8; 100];
        for_chunks(&mut data, 1, &|_, chunk| chunk.fill(1));
        assert!(data.iter().all(|number| *number == 1));
    }
}
