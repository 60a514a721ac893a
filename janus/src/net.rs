//! Sockets that block the task and not its worker. The calls are those of `std::net` and `std::os::unix::net`, with the
//! task's [`Cx`](crate::Cx); [`io`](crate::io) describes what they have in common.
//!
//! Every method takes `&self`: one task can read a stream while another writes it. A socket belongs to no runtime and
//! may be passed from task to task.

mod resolve;
mod socket;
mod tcp;
mod udp;
mod unix;

pub use resolve::Resolve;
pub use tcp::{TcpListener, TcpStream};
pub use udp::UdpSocket;
pub use unix::{UnixDatagram, UnixListener, UnixStream};
