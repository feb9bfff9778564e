//! What is due at a time.

use alloc::collections::VecDeque;

use elver_verbs::Time;

/// Things to do in the order in which they came, for delays that are alike: what came later is due
/// later, so that only the first has to be looked at. One that is due sooner than those ahead of it
/// waits for them.
#[derive(Debug)]
pub(crate) struct DueQueue<T> {
    queue: VecDeque<(Time, T)>,
}

impl<T> Default for DueQueue<T> {
    fn default() -> DueQueue<T> {
        DueQueue { queue: VecDeque::new() }
    }
}

impl<T> DueQueue<T> {
    pub(crate) fn push(&mut self, due: Time, item: T) {
        self.queue.push_back((due, item));
    }

    /// Takes one in that is due now, ahead of all.
    pub(crate) fn push_first(&mut self, now: Time, item: T) {
        self.queue.push_front((now, item));
    }

    /// The first, if it is due.
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<T> {
        self.queue.pop_front_if(|(due, _)| *due <= now).map(|(_, item)| item)
    }

    /// The first, if it is due or needs not be done.
    pub(crate) fn pop_due_unless(&mut self, now: Time, needed: impl Fn(&T) -> bool) -> Option<T> {
        self.queue.pop_front_if(|(due, item)| *due <= now || !needed(item)).map(|(_, item)| item)
    }

    /// When the first is due.
    pub(crate) fn next_due(&self) -> Option<Time> {
        self.queue.front().map(|(due, _)| *due)
    }

    /// Drops what need not be done any longer.
    pub(crate) fn retain(&mut self, needed: impl Fn(&T) -> bool) {
        self.queue.retain(|(_, item)| needed(item));
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.queue.iter().map(|(_, item)| item)
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_comes_in_order_and_not_before() {
        let mut queue = DueQueue::default();
        assert_eq!(queue.next_due(), None);
        queue.push(Time(10), 'a');
        queue.push(Time(20), 'b');
        assert_eq!(queue.pop_due(Time(9)), None);
        assert_eq!((queue.pop_due(Time(10)), queue.next_due()), (Some('a'), Some(Time(20))));
        queue.push_first(Time(15), 'c');
        assert_eq!((queue.pop_due(Time(15)), queue.pop_due(Time(15))), (Some('c'), None));
        assert_eq!((queue.pop_due(Time(99)), queue.len()), (Some('b'), 0));
    }

    #[test]
    fn what_need_not_be_done_goes() {
        let mut queue = DueQueue::default();
        for item in 0..4 {
            queue.push(Time(10), item);
        }
        queue.retain(|item| *item != 2);
        let needed = |item: &i32| *item > 0;
        assert_eq!(queue.pop_due_unless(Time(1), needed), Some(0));
        assert_eq!(queue.pop_due_unless(Time(1), needed), None);
        assert!(queue.iter().eq(&[1, 3]));
    }
}
