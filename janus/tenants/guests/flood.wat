;; Attack: sends messages without end. `grant messages`.
(module
  (import "janus" "channel" (func $channel (param i32) (result i32)))
  (import "janus" "send" (func $send (param i32 i32 i32) (result i32)))
  (import "janus" "receive" (func $receive (param i32 i32 i32) (result i32)))
  (memory 1)
  (func (export "_start") (drop (call $channel (i32.const 4)))
    (loop
      (drop (call $send (i32.const 0) (i32.const 0) (i32.const 4096)))
      (drop (call $receive (i32.const 0) (i32.const 0) (i32.const 4096)))
      (br 0))))
