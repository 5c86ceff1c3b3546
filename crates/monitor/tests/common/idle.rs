//! What most machines of these tests are not about, for their `impl Platform`.

/// Methods of a machine in which nothing happens by itself: no interrupts, no time, no
/// registers. Name the groups that the machine does not write itself.
macro_rules! idle {
    ($($group:ident),+) => {
        $(idle!(@$group);)+
    };
    (@registers) => {
        fn msr_read(&mut self, _index: u32) -> Option<u64> {
            None
        }
        fn msr_write(&mut self, _index: u32, _value: u64) -> Option<bool> {
            None
        }
        fn time_stamp(&self) -> u64 {
            0
        }
        fn host_time_stamp_offset(&self) -> u64 {
            0
        }
        fn a20_enabled(&self) -> bool {
            true
        }
        fn task_priority(&mut self) -> u8 {
            0
        }
        fn set_task_priority(&mut self, _class: u8) {}
        fn signal_fpu_error(&mut self) {}
    };
    (@interrupts) => {
        fn interrupt_pending(&mut self) -> bool {
            false
        }
        fn acknowledge_interrupt(&mut self) -> Option<u8> {
            None
        }
        idle!(@nmi);
    };
    (@nmi) => {
        fn take_nmi(&mut self) -> bool {
            false
        }
    };
    (@time) => {
        fn now(&self) -> tollgate_platform::GuestTime {
            tollgate_platform::GuestTime(0)
        }
        fn next_deadline(&self) -> Option<tollgate_platform::GuestTime> {
            None
        }
        idle!(@advance);
    };
    (@advance) => {
        fn advance(&mut self) {}
    };
}
