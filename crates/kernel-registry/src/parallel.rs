//! Hashing on all cores.
//!
//! SHA-256 cannot be divided within a file, so that files are what is shared out, the next one to
//! whoever is done first.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Applies a function to every item, on as many threads as there are cores, and gives the results in
/// the order of the items. One item, or one core, starts no thread.
pub(crate) fn map<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = cores.min(items.len());
    if threads <= 1 {
        return items.iter().map(work).collect();
    }
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(items.len()));
    thread::scope(|scope| {
        let take = || {
            let mut mine = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(item) = items.get(index) else {
                    break;
                };
                mine.push((index, work(item)));
            }
            done.lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .append(&mut mine);
        };
        for _ in 1..threads {
            scope.spawn(take);
        }
        take();
    });
    let mut done = done
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_items() {
        let items: Vec<u64> = (0..1000).collect();
        let squares = map(&items, |item| item * item);
        assert_eq!(squares.len(), 1000);
        assert!(
            squares
                .iter()
                .zip(&items)
                .all(|(square, item)| *square == item * item)
        );
        assert_eq!(map(&[] as &[u64], |item| *item), Vec::<u64>::new());
    }
}
