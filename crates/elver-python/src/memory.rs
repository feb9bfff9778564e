//! Registered memory, as a buffer.

use std::ffi::{c_int, c_void};
use std::rc::Rc;

use elver::{AccessFlags, Mr, Sge};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::raised;
use crate::own::Own;

/// Memory that the node has, and peers who know its address and key. A writable buffer of bytes: `memoryview(memory)`. It
/// stays registered as long as it or a view of it is there. Peers may write while Python reads, as they may with any RDMA
/// memory: agree with them on whose turn it is.
#[pyclass(weakref, module = "elver")]
pub struct Memory(Own<Mr>);

impl Memory {
    pub(crate) fn new(mr: Mr) -> Memory {
        Memory(Own::new(Rc::new(mr)))
    }

    pub(crate) fn mr(&self) -> Rc<Mr> {
        self.0.get()
    }

    /// The offset and length of a piece, as the library has them.
    fn bounds(&self, offset: u64, length: u64) -> PyResult<(u64, u32)> {
        let fits = offset.checked_add(length).is_some_and(|end| end <= self.mr().len());
        match u32::try_from(length) {
            Ok(length) if fits => Ok((offset, length)),
            _ => Err(PyValueError::new_err(format!(
                "{length} bytes at offset {offset} do not lie in memory of {} bytes",
                self.mr().len()
            ))),
        }
    }

    /// A piece of it, for an operation.
    pub(crate) fn piece(memory: &Bound<'_, Memory>, offset: u64, length: u64) -> PyResult<Piece> {
        let own = memory.borrow();
        let (offset, length) = own.bounds(offset, length)?;
        Ok(Piece { memory: memory.clone().unbind(), offset, sge: own.mr().sge(offset, length) })
    }

    /// As `piece`, to its end unless a length is given.
    pub(crate) fn rest(
        memory: &Bound<'_, Memory>,
        offset: u64,
        length: Option<u64>,
    ) -> PyResult<Piece> {
        let left = memory.borrow().mr().len().saturating_sub(offset);
        Memory::piece(memory, offset, length.unwrap_or(left))
    }
}

/// A piece of memory, which is kept for as long as the device may touch it.
pub(crate) struct Piece {
    pub(crate) memory: Py<Memory>,
    pub(crate) offset: u64,
    pub(crate) sge: Sge,
}

/// Rights by their letters.
pub(crate) fn access(letters: &str) -> PyResult<AccessFlags> {
    letters.chars().try_fold(AccessFlags::LOCAL_WRITE, |flags, letter| match letter {
        'r' => Ok(flags | AccessFlags::REMOTE_READ),
        'w' => Ok(flags | AccessFlags::REMOTE_WRITE),
        'a' => Ok(flags | AccessFlags::REMOTE_ATOMIC),
        other => Err(PyValueError::new_err(format!(
            "`{other}` is no right of peers: they are r (read), w (write) and a (atomics)"
        ))),
    })
}

#[pymethods]
impl Memory {
    /// The address of the first byte, for peers.
    #[getter]
    fn address(&self) -> u64 {
        self.mr().addr()
    }

    /// The key for peers.
    #[getter]
    fn rkey(&self) -> u32 {
        self.mr().rkey()
    }

    fn __len__(&self) -> usize {
        self.mr().len() as usize
    }

    /// A copy of some bytes; all by default.
    #[pyo3(signature = (offset = 0, length = None))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
        length: Option<u64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let length = length.unwrap_or_else(|| self.mr().len().saturating_sub(offset));
        let (offset, length) = self.bounds(offset, length)?;
        PyBytes::new_with(py, length as usize, |bytes| {
            self.mr().read(offset, bytes).map_err(raised)
        })
    }

    /// Copies bytes in.
    #[pyo3(signature = (data, offset = 0))]
    fn write(&self, data: &[u8], offset: u64) -> PyResult<()> {
        self.mr().write(offset, data).map_err(raised)
    }

    /// # Safety
    /// `view` is one that Python wants filled, or null.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("there is no view to fill"));
        }
        let (start, len) = {
            let memory = slf.borrow();
            (memory.mr().as_ptr().cast::<c_void>(), memory.mr().len() as ffi::Py_ssize_t)
        };
        // SAFETY: the view is Python's to be filled. It refers to this object, which keeps the region, and with it the
        // mapping, as long as the view is there.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, len, 0, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }

    fn __repr__(&self) -> String {
        format!(
            "<elver.Memory of {} bytes at {:#x}, rkey {:#x}>",
            self.mr().len(),
            self.mr().addr(),
            self.mr().rkey()
        )
    }
}
