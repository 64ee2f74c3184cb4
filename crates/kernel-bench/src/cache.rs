//! Cold caches: what a call costs whose inputs have to come from memory.

/// Without a figure from the system: more than the last-level cache of nearly every machine, and what
/// Triton's `do_bench` writes.
const USUAL: usize = 256 << 20;
/// More would take longer to write than most calls take.
const MOST: usize = 1 << 30;
/// Bytes of a cache line, or a divisor of it.
const LINE: usize = 64;

/// A buffer twice as large as the last-level cache. Writing it leaves nothing else in the caches that
/// this core uses; another core's own cache may keep lines that it alone uses.
#[derive(Debug)]
pub struct Flusher {
    buffer: Vec<u8>,
    turn: u8,
}

impl Flusher {
    /// For a machine whose last-level cache has so many bytes, where that is known.
    pub fn new(last_level_cache: Option<u64>) -> Self {
        let bytes = last_level_cache
            .and_then(|bytes| usize::try_from(bytes.saturating_mul(2)).ok())
            .unwrap_or(USUAL)
            .min(MOST);
        Self {
            buffer: vec![0; bytes],
            turn: 0,
        }
    }

    /// Bytes that a flush writes.
    pub fn bytes(&self) -> usize {
        self.buffer.len()
    }

    /// Writes every line of the buffer.
    pub fn flush(&mut self) {
        self.turn = self.turn.wrapping_add(1);
        for line in self.buffer.iter_mut().step_by(LINE) {
            *line = self.turn;
        }
        std::hint::black_box(&self.buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_a_buffer_twice_the_cache_is_written() {
        let mut flusher = Flusher::new(Some(1 << 10));
        assert_eq!(flusher.bytes(), 2 << 10);
        flusher.flush();
        flusher.flush();
        assert!(flusher.buffer.iter().step_by(LINE).all(|byte| *byte == 2));
        assert_eq!(Flusher::new(Some(u64::MAX)).bytes(), MOST);
    }
}
