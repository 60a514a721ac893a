;; Attack: a fork bomb. Everybody has children as long as there are any to be had, waits for them, and gives up.
;; `grant spawn`.
(module
  (import "janus" "spawn" (func $spawn (param i32 i64 i32) (result i32)))
  (import "janus" "join" (func $join (param i32 i32) (result i32)))
  (memory 1)
  ;; What a child gets: 10,000 operations, 192 KiB, four children.
  (data (i32.const 64) "\10\27\00\00\00\00\00\00" "\00\00\03\00\00\00\00\00" "\04\00\00\00\00\00\00\00"
                       "\00\00\00\00\00\00\00\00" "\00\00\00\00\00\00\00\00")
  (table funcref (elem $child))
  (func $child (param $arg i64) (result i64) (local $n i32)
    (loop (br_if 0 (i32.ge_s (call $spawn (i32.const 0) (i64.const 0) (i32.const 64)) (i32.const 0))))
    (loop
      (drop (call $join (local.get $n) (i32.const 0)))
      (local.set $n (i32.add (local.get $n) (i32.const 1)))
      (br_if 0 (i32.lt_u (local.get $n) (i32.const 10))))
    unreachable)
  (func (export "_start") (drop (call $child (i64.const 0)))))
