;; Sleeps for 300 ms, then answers: what a shutdown must wait for. `grant io,clock`.
(module
  (import "janus" "sleep" (func $sleep (param i64)))
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (memory 1)
  (data (i32.const 0) "\10\00\00\00\07\00\00\00")
  (data (i32.const 16) "rested\0a")
  (func (export "_start")
    (call $sleep (i64.const 300000000))
    (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))))
