//! A list of small numbers, from the least to the most recently used.

const NONE: u32 = u32::MAX;

/// Numbers below a bound, each at most once. Every operation takes constant time.
#[derive(Debug)]
pub struct Lru {
    links: Vec<(u32, u32)>, // [bound + 1] (previous, next); the last one is the head of the list
    len: usize,
}

impl Lru {
    pub fn new(bound: usize) -> Self {
        let mut links = vec![(NONE, NONE); bound + 1];
        links[bound] = (bound as u32, bound as u32);
        Self { links, len: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn contains(&self, number: u32) -> bool {
        self.links[number as usize].0 != NONE
    }

    /// Adds a number behind all others.
    pub fn push(&mut self, number: u32) {
        debug_assert!(!self.contains(number), "{number} is in the list twice");
        let head = self.links.len() as u32 - 1;
        let last = self.links[head as usize].0;
        self.links[number as usize] = (last, head);
        self.links[last as usize].1 = number;
        self.links[head as usize].0 = number;
        self.len += 1;
    }

    /// Takes a number of the list out.
    pub fn take(&mut self, number: u32) {
        let (previous, next) = std::mem::replace(&mut self.links[number as usize], (NONE, NONE));
        self.links[previous as usize].1 = next;
        self.links[next as usize].0 = previous;
        self.len -= 1;
    }

    /// Takes the first number out.
    pub fn pop(&mut self) -> Option<u32> {
        let head = self.links.len() as u32 - 1;
        let first = self.links[head as usize].1;
        if first == head {
            return None;
        }
        self.take(first);
        Some(first)
    }

    /// From first to last.
    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        let head = self.links.len() as u32 - 1;
        let next = move |&number: &u32| Some(self.links[number as usize].1);
        std::iter::successors(next(&head), next).take_while(move |&number| number != head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_leave_in_the_order_of_their_last_use() {
        let mut lru = Lru::new(4);
        assert_eq!(lru.pop(), None);
        [2, 0, 3].into_iter().for_each(|number| lru.push(number));
        lru.take(0);
        assert!(!lru.contains(0) && lru.contains(3) && lru.len() == 2);
        lru.push(0);
        assert!(lru.iter().eq([2, 3, 0]));
        assert_eq!([lru.pop(), lru.pop(), lru.pop(), lru.pop()], [Some(2), Some(3), Some(0), None]);
    }
}
