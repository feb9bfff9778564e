/// The calls of [`elver_verbs::Device`] that a device hands to its [`crate::Rnic`] as they are, for
/// its `impl Device`: `$rnic` is the field that has the RNIC, and `$now` a method that tells the
/// time. What is left to the device is memory, [`elver_verbs::Device::poll_cq`],
/// the posting of sends and [`elver_verbs::Device::progress`], which drive it.
///
/// A blanket implementation would say the same, were the trait of this crate.
#[macro_export]
macro_rules! calls_of_rnic {
    ($rnic:ident, $now:ident) => {
        fn query_device(&self) -> $crate::verbs::DeviceAttr {
            self.$rnic.query_device()
        }

        fn query_port(&self) -> $crate::verbs::PortAttr {
            self.$rnic.query_port()
        }

        fn query_gid(&self, index: u8) -> Result<$crate::verbs::Gid, $crate::verbs::VerbsError> {
            self.$rnic.query_gid(index)
        }

        fn alloc_pd(&mut self) -> Result<$crate::verbs::Pd, $crate::verbs::VerbsError> {
            self.$rnic.alloc_pd()
        }

        fn dealloc_pd(&mut self, pd: $crate::verbs::Pd) -> Result<(), $crate::verbs::VerbsError> {
            self.$rnic.dealloc_pd(pd)
        }

        fn dereg_mr(&mut self, mr: $crate::verbs::Mr) -> Result<(), $crate::verbs::VerbsError> {
            self.$rnic.dereg_mr(mr)
        }

        fn alloc_mw(
            &mut self,
            pd: $crate::verbs::Pd,
        ) -> Result<$crate::verbs::MwInfo, $crate::verbs::VerbsError> {
            self.$rnic.alloc_mw(pd)
        }

        fn dealloc_mw(&mut self, mw: $crate::verbs::Mw) -> Result<(), $crate::verbs::VerbsError> {
            self.$rnic.dealloc_mw(mw)
        }

        fn create_cq(
            &mut self,
            init: $crate::verbs::CqInit,
        ) -> Result<$crate::verbs::Cq, $crate::verbs::VerbsError> {
            self.$rnic.create_cq(init)
        }

        fn destroy_cq(&mut self, cq: $crate::verbs::Cq) -> Result<(), $crate::verbs::VerbsError> {
            self.$rnic.destroy_cq(cq)
        }

        fn req_notify_cq(
            &mut self,
            cq: $crate::verbs::Cq,
            solicited_only: bool,
        ) -> Result<(), $crate::verbs::VerbsError> {
            self.$rnic.req_notify_cq(cq, solicited_only)
        }

        fn poll_cq_event(&mut self) -> Option<$crate::verbs::Cq> {
            self.$rnic.poll_cq_event()
        }

        fn create_srq(
            &mut self,
            init: $crate::verbs::SrqInit,
        ) -> Result<$crate::verbs::Srq, $crate::verbs::VerbsError> {
            self.$rnic.create_srq(init)
        }

        fn modify_srq(
            &mut self,
            srq: $crate::verbs::Srq,
            limit: u32,
        ) -> Result<(), $crate::verbs::VerbsError> {
            self.$rnic.modify_srq(srq, limit)
        }

        fn query_srq(
            &self,
            srq: $crate::verbs::Srq,
        ) -> Result<$crate::verbs::SrqAttr, $crate::verbs::VerbsError> {
            self.$rnic.query_srq(srq)
        }

        fn destroy_srq(
            &mut self,
            srq: $crate::verbs::Srq,
        ) -> Result<(), $crate::verbs::VerbsError> {
            self.$rnic.destroy_srq(srq)
        }

        fn post_srq_recv(
            &mut self,
            srq: $crate::verbs::Srq,
            wrs: &[$crate::verbs::RecvWr<'_>],
        ) -> Result<(), (usize, $crate::verbs::PostError)> {
            self.$rnic.post_srq_recv(self.$now(), srq, wrs)
        }

        fn create_ah(
            &mut self,
            pd: $crate::verbs::Pd,
            av: $crate::verbs::AddressVector,
        ) -> Result<$crate::verbs::Ah, $crate::verbs::VerbsError> {
            self.$rnic.create_ah(pd, av)
        }

        fn destroy_ah(&mut self, ah: $crate::verbs::Ah) -> Result<(), $crate::verbs::VerbsError> {
            self.$rnic.destroy_ah(ah)
        }

        fn create_qp(
            &mut self,
            init: $crate::verbs::QpInit,
        ) -> Result<$crate::verbs::Qp, $crate::verbs::VerbsError> {
            self.$rnic.create_qp(init)
        }

        fn modify_qp(
            &mut self,
            qp: $crate::verbs::Qp,
            attr: &$crate::verbs::QpAttr,
            mask: $crate::verbs::QpAttrMask,
        ) -> Result<(), $crate::verbs::VerbsError> {
            self.$rnic.modify_qp(self.$now(), qp, attr, mask)
        }

        fn qp_num(&self, qp: $crate::verbs::Qp) -> Result<u32, $crate::verbs::VerbsError> {
            self.$rnic.qp_num(qp)
        }

        fn destroy_qp(&mut self, qp: $crate::verbs::Qp) -> Result<(), $crate::verbs::VerbsError> {
            self.$rnic.destroy_qp(self.$now(), qp)
        }

        fn reset_dci_stream(
            &mut self,
            qp: $crate::verbs::Qp,
            stream_id: u16,
        ) -> Result<(), $crate::verbs::VerbsError> {
            self.$rnic.reset_dci_stream(self.$now(), qp, stream_id)
        }

        fn send_head(
            &self,
            qp: $crate::verbs::Qp,
            stream_id: u16,
        ) -> Option<$crate::verbs::SendHead> {
            self.$rnic.send_head(qp, stream_id)
        }

        fn give_up_head(
            &mut self,
            qp: $crate::verbs::Qp,
            stream_id: u16,
            head: $crate::verbs::SendHead,
        ) -> bool {
            self.$rnic.give_up_head(self.$now(), qp, stream_id, head)
        }

        fn take_short_turns(&mut self, qp: $crate::verbs::Qp, short: bool) {
            self.$rnic.take_short_turns(qp, short);
        }

        #[inline]
        fn post_recv(
            &mut self,
            qp: $crate::verbs::Qp,
            wrs: &[$crate::verbs::RecvWr<'_>],
        ) -> Result<(), (usize, $crate::verbs::PostError)> {
            self.$rnic.post_recv(self.$now(), qp, wrs)
        }

        fn poll_async_event(&mut self) -> Option<$crate::verbs::AsyncEvent> {
            self.$rnic.poll_async_event()
        }
    };
}
