//! A lock that stays when what it guards has gone.
//!
//! Main types: [`LastingMutex`], [`LastingGuard`]. Neighbours: `mutex` is the lock itself; the heaps of `concertina-heap` lie
//! behind one each.
//!
//! A guard of a common lock borrows it, so that whoever holds the lock also keeps it alive. Who gives away its last reference
//! to the owner of the lock, *into* what the lock guards, still has to let go of it. So this lock is nobody's: it is made once
//! and never given back to the host, and guards something else when its value has gone. A process has as many of a type as
//! it ever had values of that type at the same time.

use core::any::{Any, TypeId};
use core::fmt;
use std::collections::BTreeMap;
use std::sync::PoisonError;

use super::{Mutex, MutexGuard};

/// Locks without a value, by their type.
static VACANT: std::sync::Mutex<BTreeMap<TypeId, Vec<&'static (dyn Any + Send + Sync)>>> =
    std::sync::Mutex::new(BTreeMap::new());

/// Whether a lock without a value serves again. Not under a scheduler, whose locks are good for one run.
const SERVES_AGAIN: bool = cfg!(not(any(shuttle, loom)));

/// A mutual exclusion lock that guards one value at a time.
// Two of them share no cache line.
#[repr(align(128))]
pub struct LastingMutex<T>(Mutex<Option<T>>);

impl<T> fmt::Debug for LastingMutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LastingMutex").finish_non_exhaustive()
    }
}

impl<T: Send + 'static> LastingMutex<T> {
    /// A lock around `value`: one whose value has gone, or a new one.
    pub fn around(value: T) -> &'static Self {
        let lock = Self::vacant().unwrap_or_else(|| Box::leak(Box::new(Self(Mutex::new(None)))));
        *lock.0.lock() = Some(value);
        lock
    }

    fn vacant() -> Option<&'static Self> {
        let mut vacant = VACANT.lock().unwrap_or_else(PoisonError::into_inner);
        let lock: &'static dyn Any = vacant.get_mut(&TypeId::of::<Self>())?.pop()?;
        lock.downcast_ref()
    }

    /// Takes the value out and leaves the lock to another one: the caller is the last who uses it. `None` if the value has gone
    /// before, or if somebody has the lock, who would be waited for in vain if that were the caller.
    pub fn vacate(&'static self) -> Option<T> {
        let value = self.0.try_lock()?.take()?;
        if SERVES_AGAIN {
            let mut vacant = VACANT.lock().unwrap_or_else(PoisonError::into_inner);
            vacant.entry(TypeId::of::<Self>()).or_default().push(self);
        }
        Some(value)
    }

    /// Waits for the lock and takes it.
    #[inline]
    pub fn lock(&'static self) -> LastingGuard<T> {
        LastingGuard(self.0.lock())
    }

    /// Takes the lock if nobody has it.
    #[inline]
    pub fn try_lock(&'static self) -> Option<LastingGuard<T>> {
        self.0.try_lock().map(LastingGuard)
    }
}

/// The lock, held: lets go when dropped. Borrows nothing.
#[must_use = "dropping it lets go of the lock"]
pub struct LastingGuard<T: 'static>(MutexGuard<'static, Option<T>>);

impl<T> LastingGuard<T> {
    /// The value; `None` if it has gone.
    #[inline]
    pub fn value(&self) -> Option<&T> {
        self.0.as_ref()
    }

    /// The same, to be changed.
    #[inline]
    pub fn value_mut(&mut self) -> Option<&mut T> {
        self.0.as_mut()
    }
}

impl<T: fmt::Debug> fmt::Debug for LastingGuard<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LastingGuard").field(&self.value()).finish()
    }
}

#[cfg(all(test, not(any(shuttle, loom))))]
mod tests {
    use std::sync::Arc;

    use super::LastingMutex;

    #[test]
    fn a_lock_guards_another_value_when_its_own_has_gone() {
        // Types of this test alone: others run at the same time.
        #[derive(Debug, PartialEq)]
        struct Here(u32);
        #[derive(Debug, PartialEq)]
        struct Elsewhere(u32);
        let lock = LastingMutex::around(Here(1));
        let other = LastingMutex::around(Here(2));
        assert!(!std::ptr::eq(lock, other), "both have a value");
        let held = lock.lock();
        assert_eq!(lock.vacate(), None, "somebody has it");
        drop(held);
        assert_eq!(lock.vacate(), Some(Here(1)));
        assert_eq!(lock.lock().value(), None);
        assert_eq!(lock.vacate(), None, "it is left to another value once");
        LastingMutex::around(Elsewhere(3));
        assert_eq!(lock.lock().value(), None, "that is another type's");
        let again = LastingMutex::around(Here(4));
        assert!(std::ptr::eq(lock, again));
        assert_eq!(again.lock().value(), Some(&Here(4)));
        assert!(!std::ptr::eq(lock, LastingMutex::around(Here(5))));
    }

    #[test]
    fn a_value_that_owns_itself_through_the_lock_can_be_let_go_of() {
        // As a heap's: who is in the lock gives it the only reference to what leads there.
        struct Owner {
            lock: &'static LastingMutex<Vec<Arc<Owner>>>,
        }
        let owner = Arc::new(Owner { lock: LastingMutex::around(Vec::new()) });
        let weak = Arc::downgrade(&owner);
        let lock = owner.lock;
        let mut guard = lock.lock();
        guard.value_mut().expect("it has one").push(owner);
        assert!(lock.try_lock().is_none());
        drop(guard);
        assert_eq!(weak.strong_count(), 1);
        drop(lock.vacate());
        assert_eq!(weak.strong_count(), 0);
    }

    #[test]
    fn threads_that_make_locks_have_one_each() {
        struct Mine(usize);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    for _ in 0..2_000 {
                        let lock = LastingMutex::around(Mine(thread));
                        assert_eq!(lock.lock().value().map(|mine| mine.0), Some(thread));
                        assert_eq!(lock.vacate().map(|mine| mine.0), Some(thread));
                    }
                });
            }
        });
    }
}
