//! Samples of messages about the balance, and about all that waits.

use duramen_base::ids::{KeyRange, ServerId, TableId};
use duramen_wire::native::message::{Admin, AdminAnswer, BalanceStatus, PlannedMove, Wait};

pub fn rebalance() -> [Admin; 3] {
    let of = |is_dry| Admin::Rebalance { is_dry };
    [of(true), of(false), Admin::Balance]
}

pub fn balance() -> [AdminAnswer; 3] {
    let wait = Wait {
        server: Some(ServerId::new(3, 2)),
        is_now: true,
        reason: "its memory is full".to_owned(),
    };
    let planned = PlannedMove {
        table: TableId(1),
        range: KeyRange::ALL,
        from: ServerId::new(3, 2),
        to: ServerId::new(2, 3),
        bytes: 5,
    };
    let status = BalanceStatus {
        is_automatic: true,
        is_even: false,
        moves_left: 1,
        bytes_left: 2,
        waits_for: Some("a drain".to_owned()),
        shares: vec![(ServerId::new(3, 2), 3, 4)],
    };
    [
        AdminAnswer::Waits(vec![wait]),
        AdminAnswer::Moves(vec![planned]),
        AdminAnswer::Balance(Box::new(status)),
    ]
}
