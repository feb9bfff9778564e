//! To which context an object of a program's belongs.

use crate::layout::{Ah, CompChannel, Context, Cq, CqEx, Dm, Mr, Mw, Pd, Qp, Srq, Td};

/// An object of a context.
pub(crate) trait Belongs {
    fn context(&self) -> *mut Context;
}

macro_rules! belong {
    ($($object:ident)*) => {$(
        impl Belongs for $object {
            fn context(&self) -> *mut Context {
                self.context
            }
        }
    )*};
}

belong! { Ah CompChannel Cq CqEx Dm Mr Mw Pd Qp Srq Td }

impl Belongs for Context {
    fn context(&self) -> *mut Context {
        std::ptr::from_ref(self).cast_mut()
    }
}
