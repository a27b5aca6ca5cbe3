<?php

// What Laravel's own tests need of Debian's packages.

error_reporting(E_ALL & ~E_DEPRECATED);
require '/usr/share/php/Illuminate/autoload.php';
require '/usr/share/php/Predis/autoload.php';
require '/usr/share/php/Mockery/autoload.php';
