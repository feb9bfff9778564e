use std::marker::PhantomData;

/// A method: a number that both ends know it by, a name for people, and the types of its messages.
///
/// ```
/// use elver_rpc::Method;
/// const LENGTH: Method<String, u64> = Method::new(1, "text.Length");
/// assert_eq!((LENGTH.id(), LENGTH.name()), (1, "text.Length"));
/// ```
#[derive(Debug)]
pub struct Method<Request, Response> {
    id: u32,
    name: &'static str,
    types: PhantomData<fn(Request) -> Response>,
}

impl<Request, Response> Method<Request, Response> {
    /// A method.
    pub const fn new(id: u32, name: &'static str) -> Method<Request, Response> {
        Method { id, name, types: PhantomData }
    }

    /// Its number, which goes over the wire.
    pub const fn id(&self) -> u32 {
        self.id
    }

    /// Its name, which does not.
    pub const fn name(&self) -> &'static str {
        self.name
    }
}

impl<Request, Response> Clone for Method<Request, Response> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Request, Response> Copy for Method<Request, Response> {}
