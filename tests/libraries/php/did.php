<?php

// What all programs of this folder share: the server, and the lines that they print.

error_reporting(E_ALL & ~E_DEPRECATED);
define('HOST', getenv('REDIS_HOST') ?: '127.0.0.1');
define('PORT', (int) (getenv('REDIS_PORT') ?: 6379));

function did(string $what): void
{
    fwrite(STDOUT, "did $what\n");
}

function check(bool $holds, string $text): void
{
    if (!$holds) {
        throw new Exception($text);
    }
}

function same($wanted, $got, string $what): void
{
    check($wanted === $got, "$what: " . var_export($got, true) . ', not ' . var_export($wanted, true));
}
