//! Many FIFO lists in one growing array, so that queues of waiters, orders and requests allocate
//! nothing once warm.

use std::hash::{Hash, Hasher};

/// The number that ends a list.
const END: u32 = u32::MAX;

/// One list: its ends in a [`Lists`]. It must be emptied before it is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct List {
    head: u32,
    tail: u32,
}

impl List {
    pub(super) const EMPTY: Self = Self { head: END, tail: END };

    pub(super) fn is_empty(self) -> bool {
        self.head == END
    }
}

/// The elements of all lists.
#[derive(Clone, Debug)]
pub(super) struct Lists<T> {
    nodes: Vec<(T, u32)>,
    free: u32,
}

impl<T: Copy> Lists<T> {
    pub(super) fn new() -> Self {
        Self { nodes: Vec::new(), free: END }
    }

    fn node(&mut self, value: T, next: u32) -> u32 {
        if self.free == END {
            assert!(self.nodes.len() < END as usize, "more list elements than numbers for them");
            self.nodes.push((value, next));
            return self.nodes.len() as u32 - 1;
        }
        let at = self.free;
        self.free = self.nodes[at as usize].1;
        self.nodes[at as usize] = (value, next);
        at
    }

    pub(super) fn push_back(&mut self, list: &mut List, value: T) {
        let at = self.node(value, END);
        match list.tail {
            END => list.head = at,
            tail => self.nodes[tail as usize].1 = at,
        }
        list.tail = at;
    }

    pub(super) fn push_front(&mut self, list: &mut List, value: T) {
        let at = self.node(value, list.head);
        if list.head == END {
            list.tail = at;
        }
        list.head = at;
    }

    pub(super) fn front(&self, list: List) -> Option<T> {
        (list.head != END).then(|| self.nodes[list.head as usize].0)
    }

    pub(super) fn pop_front(&mut self, list: &mut List) -> Option<T> {
        self.remove_first(list, |_| true)
    }

    /// Removes and returns the first element that `wanted` picks.
    pub(super) fn remove_first(&mut self, list: &mut List, wanted: impl Fn(&T) -> bool) -> Option<T> {
        let (mut before, mut at) = (END, list.head);
        while at != END {
            let (value, next) = self.nodes[at as usize];
            if wanted(&value) {
                match before {
                    END => list.head = next,
                    before => self.nodes[before as usize].1 = next,
                }
                if next == END {
                    list.tail = before;
                }
                self.nodes[at as usize].1 = self.free;
                self.free = at;
                return Some(value);
            }
            (before, at) = (at, next);
        }
        None
    }

    /// Returns the elements from the front.
    pub(super) fn iter(&self, list: List) -> impl Iterator<Item = T> {
        let mut at = list.head;
        std::iter::from_fn(move || {
            (at != END).then(|| {
                let (value, next) = self.nodes[at as usize];
                at = next;
                value
            })
        })
    }
}

/// Elements that are in a list. Removed ones that are still in the array decide nothing.
impl<T: Copy + Hash> Hash for Lists<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let mut is_free = vec![false; self.nodes.len()];
        let mut at = self.free;
        while at != END {
            is_free[at as usize] = true;
            at = self.nodes[at as usize].1;
        }
        for (at, node) in self.nodes.iter().enumerate().filter(|(at, _)| !is_free[*at]) {
            (at, node).hash(state);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    #[test]
    fn behaves_like_queues_and_reuses_its_room() {
        let mut lists = Lists::new();
        let mut ours = [List::EMPTY; 3];
        let mut model: [VecDeque<u64>; 3] = Default::default();
        let mut state = 1u64;
        for step in 0..50_000u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let which = (state >> 33) as usize % 3;
            let (list, queue) = (&mut ours[which], &mut model[which]);
            match (state >> 40) % 5 {
                0 if queue.len() < 20 => {
                    lists.push_back(list, step);
                    queue.push_back(step);
                }
                1 if queue.len() < 20 => {
                    lists.push_front(list, step);
                    queue.push_front(step);
                }
                2 => {
                    let odd = queue.iter().position(|v| v % 2 == 1).and_then(|at| queue.remove(at));
                    assert_eq!(lists.remove_first(list, |v| v % 2 == 1), odd);
                }
                _ => assert_eq!(lists.pop_front(list), queue.pop_front()),
            }
            assert_eq!(lists.front(ours[which]), model[which].front().copied());
            assert!(lists.iter(ours[which]).eq(model[which].iter().copied()));
        }
        assert!(lists.nodes.len() <= 60);
    }
}
