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

/// A moment or never, in one number: each poll compares one with the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Alarm(Time);

impl Alarm {
    pub(crate) const NEVER: Alarm = Alarm(Time(u64::MAX));

    #[inline]
    pub(crate) fn get(self) -> Option<Time> {
        (self != Alarm::NEVER).then_some(self.0)
    }

    #[inline]
    pub(crate) fn is_due(self, now: Time) -> bool {
        self.0 <= now
    }
}

impl From<Time> for Alarm {
    fn from(at: Time) -> Alarm {
        Alarm(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_goes_off_at_its_time_or_never() {
        let alarm = Alarm::from(Time(10));
        assert_eq!((alarm.get(), Alarm::NEVER.get()), (Some(Time(10)), None));
        assert!(alarm.is_due(Time(10)) && !alarm.is_due(Time(9)));
        assert!(!Alarm::NEVER.is_due(Time(u64::MAX - 1)));
    }

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
